// Draws the charts of a report with uPlot: hover, zoom, axes, smoothing, and showing or hiding runs.
"use strict";
const report = (() => {
  const { runs, charts } = page.data;
  const state = { axis: "step", smooth: 1, hidden: new Set(), range: null };
  const drawn = []; // { chart, plot, members: for each series of the plot the run it is of }
  let full = null; // the range of the axis that has everything

  // --- values ----------------------------------------------------------------------------------

  function columnsOf(series) {
    const run = runs[series.run];
    return series.table === "training" ? run.training : run.held_out[series.table];
  }

  const longest = Math.max(0, ...runs.map((run) => run.training.training_seconds.at(-1) ?? 0));
  const [second, unit] = longest < 600 ? [1, "seconds"] : longest < 7200 ? [60, "minutes"] : [3600, "hours"];
  const axes = {
    step: "step",
    positions_seen: "positions seen, including padding",
    training_seconds: `${unit} of training`,
  };

  function xOf(columns) {
    return state.axis === "training_seconds"
      ? columns.training_seconds.map((value) => value / second)
      : columns[state.axis];
  }

  // The position of a step on the current axis, interpolated between two training rows.
  function placeOf(run, step) {
    const steps = [0, ...run.training.step];
    const xs = [0, ...xOf(run.training)];
    const after = steps.findIndex((other) => other >= step);
    if (after < 0) return state.axis === "step" ? step : null;
    if (after === 0) return xs[0];
    const share = (step - steps[after - 1]) / (steps[after] - steps[after - 1]);
    return xs[after - 1] + share * (xs[after] - xs[after - 1]);
  }

  // The mean over `width` rows around each row; a row without a value stays without one.
  function smoothed(values, width) {
    if (width <= 1) return values;
    const half = Math.floor(width / 2);
    return values.map((value, i) => {
      if (value === null) return null;
      const near = values.slice(Math.max(0, i - half), i + half + 1).filter((v) => v !== null);
      return near.reduce((a, b) => a + b, 0) / near.length;
    });
  }

  function short(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size >= 1e5) return value.toLocaleString("en", { maximumFractionDigits: 0 });
    if (size !== 0 && size < 1e-3) return value.toExponential(3);
    return Number(value.toPrecision(5)).toLocaleString("en", { maximumFractionDigits: 8 });
  }

  function onAxis(value) {
    if (value === null) return "";
    const size = Math.abs(value);
    if (size >= 1e9) return `${Number((value / 1e9).toPrecision(4))}G`;
    if (size >= 1e6) return `${Number((value / 1e6).toPrecision(4))}M`;
    if (size >= 1e4) return `${Number((value / 1e3).toPrecision(4))}k`;
    if (size !== 0 && size < 1e-3) return Number(value.toPrecision(3)).toExponential();
    return String(Number(value.toPrecision(4)));
  }

  // --- one chart -------------------------------------------------------------------------------

  function faded(colour, share) {
    const numbers = colour.match(/[\d.]+/g);
    return `rgba(${numbers[0]}, ${numbers[1]}, ${numbers[2]}, ${share})`;
  }

  // The position nearest to the pointer at which a series has a value.
  function nearest(plot, series, hovered) {
    const [xs, values] = [plot.data[0], plot.data[series]];
    if (values[hovered] !== null && values[hovered] !== undefined) return hovered;
    let [before, after] = [hovered - 1, hovered + 1];
    while (before >= 0 && (values[before] === null || values[before] === undefined)) before--;
    while (after < values.length && (values[after] === null || values[after] === undefined)) after++;
    if (before < 0) return after < values.length ? after : null;
    if (after >= values.length) return before;
    return xs[hovered] - xs[before] <= xs[after] - xs[hovered] ? before : after;
  }

  function draw(chart) {
    const place = document.getElementById(chart.id);
    const tables = [];
    const series = [{ label: axes[state.axis], value: (_, value) => short(value) }];
    const members = [null];
    const bands = [];
    const isPositive = (value) => value === null || value > 0;
    const allowed = (values) => (chart.log ? values.map((v) => (isPositive(v) ? v : null)) : values);
    const hasHeldOut = chart.series.some((one) => one.table !== "training");

    for (const number of chart.expected) {
      const points = runs[number].expected
        .map(([step, low, high]) => [placeOf(runs[number], step), low, high])
        .filter(([x]) => x !== null);
      if (points.length === 0) continue;
      tables.push([0, 2, 1].map((column) => points.map((point) => point[column])));
      const colour = page.colour(`series-${number % 8}`);
      const name = runs.length > 1 ? `${runs[number].name}, ` : "";
      bands.push({ series: [series.length, series.length + 1], fill: faded(colour, 0.16) });
      for (const which of ["highest", "lowest"]) {
        series.push({
          label: `${name}expected, ${which}`,
          stroke: faded(colour, 0.5),
          width: 0.5,
          points: { show: false },
          value: (_, value) => short(value),
          show: !state.hidden.has(number),
        });
        members.push(number);
      }
    }
    for (const one of chart.series) {
      const columns = columnsOf(one);
      const isTraining = one.table === "training";
      const colour = page.colour(`series-${one.colour % 8}`);
      const values = allowed(columns[one.column]);
      tables.push([xOf(columns), isTraining ? smoothed(values, state.smooth) : values]);
      const mean = isTraining && state.smooth > 1 ? ` (mean of ${state.smooth})` : "";
      series.push({
        label: one.label + mean,
        stroke: isTraining && hasHeldOut ? faded(colour, 0.6) : colour,
        width: isTraining ? 1.25 : 2,
        dash: one.colour >= 8 ? [8, 3] : undefined,
        points: isTraining ? {} : { show: true, size: 6, fill: colour },
        value: (_, value) => short(value),
        show: !state.hidden.has(one.run),
      });
      members.push(one.run);
    }
    const joined = uPlot.join(tables);
    for (const line of chart.lines) {
      joined.push(joined[0].map(() => line.value));
      series.push({
        label: line.label,
        stroke: page.colour("quiet"),
        width: 1.5,
        dash: [6, 4],
        points: { show: false },
        value: (_, value) => short(value),
      });
      members.push(null);
    }

    function markSkips(plot) {
      if (!chart.skips) return;
      const { ctx, bbox } = plot;
      ctx.save();
      ctx.strokeStyle = page.colour("series-6");
      ctx.lineWidth = 2 * devicePixelRatio;
      ctx.setLineDash([]);
      for (const [number, run] of runs.entries()) {
        if (state.hidden.has(number)) continue;
        for (const step of run.skipped_steps) {
          const at = placeOf(run, step);
          if (at === null || at < plot.scales.x.min || at > plot.scales.x.max) continue;
          const x = plot.valToPos(at, "x", true);
          ctx.beginPath();
          ctx.moveTo(x, bbox.top);
          ctx.lineTo(x, bbox.top + 12 * devicePixelRatio);
          ctx.stroke();
        }
      }
      ctx.restore();
    }

    const look = {
      stroke: page.colour("quiet"),
      grid: { stroke: page.colour("line"), width: 1 },
      ticks: { stroke: page.colour("line"), width: 1 },
      values: (_, splits) => splits.map(onAxis),
    };
    const plot = new uPlot(
      {
        width: Math.max(place.clientWidth, 200),
        height: heightOf(place),
        scales: { x: { time: false }, y: chart.log ? { distr: 3 } : {} },
        axes: [
          { ...look, label: axes[state.axis], labelSize: 20, size: 34 },
          { ...look, size: 60, label: chart.unit || undefined, labelSize: 18 },
        ],
        series,
        bands,
        legend: { live: true },
        cursor: {
          dataIdx: nearest,
          drag: { x: true, y: false, setScale: false },
          bind: { dblclick: () => () => zoom(null) },
          sync: {
            key: "report",
            scales: ["x", null],
            filters: { pub: (kind) => kind === "mousemove" || kind === "mouseleave" },
          },
        },
        hooks: { setSelect: [spread], draw: [markSkips] },
      },
      joined,
      place,
    );
    if (chart.skips && runs.some((run) => run.skipped_steps.length > 0)) {
      plot.root.append(page.make("div", { class: "note" }, "Marks at the top: skipped updates"));
    }
    return { chart, plot, members, place };
  }

  function heightOf(place) {
    return place.clientWidth < 500 ? 220 : place.clientWidth > 900 ? 340 : 260;
  }

  // --- all charts ------------------------------------------------------------------------------

  // A range that is chosen in one chart is shown in all charts.
  function spread(plot) {
    const { left, width } = plot.select;
    if (width < 3) return; // a click
    zoom([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  }

  function zoom(range) {
    if (drawn.length === 0) return;
    state.range = range;
    const [min, max] = range ?? full;
    for (const { plot } of drawn) plot.setScale("x", { min, max });
    document.getElementById("zoom-all").disabled = range === null;
  }

  function drawAll() {
    for (const { plot } of drawn) plot.destroy();
    drawn.length = 0;
    full = null;
    for (const chart of charts) drawn.push(draw(chart));
    const ends = drawn.flatMap(({ plot }) => [plot.data[0][0], plot.data[0].at(-1)]);
    const [low, high] = [Math.min(...ends), Math.max(...ends)];
    full = low < high ? [low, high] : [low - 0.5, low + 0.5];
    zoom(state.range);
  }

  function show(run, isShown) {
    if (isShown) state.hidden.delete(run);
    else state.hidden.add(run);
    for (const { plot, members } of drawn) {
      members.forEach((member, i) => {
        if (member === run) plot.setSeries(i, { show: isShown });
      });
      plot.redraw();
    }
  }

  // --- controls --------------------------------------------------------------------------------

  function select(label, identity, choices, onChoice) {
    const options = choices.map(([value, words]) => page.make("option", { value }, words));
    const chosen = page.make("select", { id: identity, onchange: (e) => onChoice(e.target.value) }, ...options);
    return page.make("label", { class: "group" }, `${label} `, chosen);
  }

  function controls() {
    const { make } = page;
    const group = (label, ...inside) => make("div", { class: "group", role: "group", "aria-label": label }, ...inside);
    const zoomed = (change) => () => {
      const [min, max] = state.range ?? full;
      const [low, high] = change(min, max);
      const range = [Math.max(low, full[0]), Math.min(high, full[1])];
      if (range[0] < range[1]) zoom(range[0] === full[0] && range[1] === full[1] ? null : range);
    };
    const button = (identity, sign, words, change) =>
      make("button", { type: "button", id: identity, title: words, "aria-label": words, onclick: change }, sign);
    const parts = [];
    if (runs.length > 1) {
      const buttons = runs.map((run, number) => {
        const swatch = make("span", { class: "swatch" });
        swatch.style.background = `var(--series-${number % 8})`;
        const toggle = make(
          "button",
          {
            type: "button",
            id: `run-${number}`,
            "aria-pressed": "true",
            onclick: () => {
              const isShown = state.hidden.has(number);
              toggle.setAttribute("aria-pressed", String(isShown));
              show(number, isShown);
            },
          },
          swatch,
          run.name,
        );
        return toggle;
      });
      parts.push(group("Runs", ...buttons));
    }
    const known = Object.entries(axes).filter(([name]) =>
      runs.some((run) => (run.training[name].at(-1) ?? 0) > 0),
    );
    const redraw = (key, read) => (value) => {
      state[key] = read(value);
      if (key === "axis") state.range = null;
      drawAll();
    };
    parts.push(select("Over", "axis", known, redraw("axis", String)));
    const widths = [[1, "as logged"], [5, "mean of 5 rows"], [25, "mean of 25 rows"], [101, "mean of 101 rows"]];
    parts.push(select("Training curves", "smooth", widths, redraw("smooth", Number)));
    parts.push(
      group(
        "Zoom",
        button("zoom-in", "+", "Zoom in", zoomed((a, b) => [a + (b - a) / 4, b - (b - a) / 4])),
        button("zoom-out", "−", "Zoom out", zoomed((a, b) => [a - (b - a) / 2, b + (b - a) / 2])),
        button("zoom-left", "‹", "Earlier", zoomed((a, b) => {
          const shift = Math.min((b - a) / 2, a - full[0]);
          return [a - shift, b - shift];
        })),
        button("zoom-right", "›", "Later", zoomed((a, b) => {
          const shift = Math.min((b - a) / 2, full[1] - b);
          return [a + shift, b + shift];
        })),
        button("zoom-all", "All", "Show all", () => zoom(null)),
      ),
    );
    document.getElementById("controls").append(...parts);
  }

  if (charts.length > 0) {
    controls();
    drawAll();
    page.onTheme(drawAll);
    const watcher = new ResizeObserver(() => {
      for (const { plot, place } of drawn) {
        const size = { width: Math.max(place.clientWidth, 200), height: heightOf(place) };
        if (size.width !== plot.width || size.height !== plot.height) plot.setSize(size);
      }
    });
    for (const chart of charts) watcher.observe(document.getElementById(chart.id));
  }
  return { drawn, state, zoom };
})();
