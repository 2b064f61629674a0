// The views of the attention page that show heads: maps of all heads, lines, and a table.
"use strict";
(() => {
  const { data, tokens, heads, layers } = attention;
  const { number, named, prepared } = attentionSteps;
  const { make } = page;
  const $ = (id) => document.getElementById(id);
  const ROW = 22; // pixels of a token's line
  const SMALL = 0.01; // weights that are not drawn
  const COLOURS = 8; // of series
  const state = {
    layer: 0,
    head: 0,
    token: Math.min(1, tokens - 1),
    key: 0,
    drawn: new Set([0]),
    pointed: null, // {side: "query" | "key", token}
  };
  const statistic = (layer, head) => data.statistics[layer * heads + head];
  const seriesOf = (head) => `series-${head % COLOURS}`;

  // --- choices -----------------------------------------------------------------------------------

  function chooseHead(layer, head) {
    state.layer = layer;
    state.head = head;
    state.drawn = new Set([head]);
    if (!attention.sees(layer, state.token, state.key)) state.key = state.token;
    show();
  }

  function chooseToken(token) {
    state.token = token;
    if (!attention.sees(state.layer, token, state.key)) state.key = token;
    show();
  }

  function fill(select, values) {
    select.replaceChildren(...values.map((text, i) => make("option", { value: i }, text)));
  }

  fill($("layer"), data.layers.map(String));
  fill($("head"), Array.from({ length: heads }, (_, head) => String(head + 1)));
  fill($("token"), data.tokens.map((_, token) => named(token)));
  $("layer").addEventListener("change", (event) => {
    state.layer = Number(event.target.value);
    show();
  });
  $("head").addEventListener("change", (event) => chooseHead(state.layer, Number(event.target.value)));
  $("token").addEventListener("change", (event) => chooseToken(Number(event.target.value)));
  $("all").addEventListener("change", drawLines);
  $("every").addEventListener("click", () => {
    const isEvery = state.drawn.size === heads;
    state.drawn = isEvery ? new Set([state.head]) : new Set(Array.from({ length: heads }, (_, h) => h));
    show();
  });
  for (let head = 0; head < heads; head++) {
    const box = make("input", {
      type: "checkbox",
      value: head,
      onchange: (event) => {
        if (event.target.checked) state.drawn.add(head);
        else state.drawn.delete(head);
        show();
      },
    });
    const label = make("label", { class: "swatch" }, box, String(head + 1));
    label.style.setProperty("--swatch", `var(--${seriesOf(head)})`);
    $("drawn").append(label);
  }

  // --- all heads ---------------------------------------------------------------------------------

  const maps = $("maps");
  const MARGIN = 22;
  const GAP = 2;
  const pictures = new Map(); // head -> a canvas of one pixel a weight, in the present colour
  let cell = 0;

  function picture(layer, head, colour) {
    const name = layer * heads + head;
    if (!pictures.has(name)) {
      const weights = attention.weights(layer, head);
      const canvas = make("canvas", { width: tokens, height: tokens });
      const context = canvas.getContext("2d");
      const image = context.createImageData(tokens, tokens);
      for (let i = 0; i < weights.length; i++) {
        image.data[4 * i] = colour[0];
        image.data[4 * i + 1] = colour[1];
        image.data[4 * i + 2] = colour[2];
        image.data[4 * i + 3] = 255 * Math.sqrt(weights[i]); // small weights are to be seen, too
      }
      context.putImageData(image, 0, 0);
      pictures.set(name, canvas);
    }
    return pictures.get(name);
  }

  let drawing = 0;

  function drawMaps() {
    const width = $("overview").clientWidth;
    cell = Math.max(8, Math.min(64, Math.floor((width - MARGIN) / heads)));
    const context = prepared(maps, MARGIN + heads * cell, MARGIN + layers * cell);
    const ink = page.colour("series-0").match(/[\d.]+/g).map(Number);
    const quiet = page.colour("quiet");
    const line = page.colour("line");
    context.font = "10px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "center";
    context.fillStyle = quiet;
    for (let head = 0; head < heads; head++) {
      context.fillText(head + 1, MARGIN + (head + 0.5) * cell, MARGIN / 2);
    }
    for (let layer = 0; layer < layers; layer++) {
      context.fillText(data.layers[layer], MARGIN / 2, MARGIN + (layer + 0.5) * cell);
    }
    const number = ++drawing;
    maps.removeAttribute("data-drawn");
    // One layer per frame, so that the page stays responsive.
    function drawLayer(layer) {
      if (number !== drawing) return;
      if (layer === layers) {
        maps.dataset.drawn = "all";
        return;
      }
      for (let head = 0; head < heads; head++) {
        const [x, y] = [MARGIN + head * cell, MARGIN + layer * cell];
        const side = cell - GAP;
        context.imageSmoothingEnabled = side < tokens;
        context.drawImage(picture(layer, head, ink), x, y, side, side);
        context.strokeStyle = line;
        context.lineWidth = 1;
        context.strokeRect(x + 0.5, y + 0.5, side - 1, side - 1);
      }
      markChosen();
      requestAnimationFrame(() => drawLayer(layer + 1));
    }
    drawLayer(0);
  }

  const mark = make("span", { class: "mark", "aria-hidden": "true" });
  $("overview").append(mark);

  function markChosen() {
    mark.style.left = `${MARGIN + state.head * cell - 2}px`;
    mark.style.top = `${MARGIN + state.layer * cell - 2}px`;
    mark.style.width = mark.style.height = `${cell + 2}px`;
  }

  function describe(layer, head) {
    const found = statistic(layer, head);
    $("overview-status").textContent =
      `Layer ${found.layer}, head ${found.head}: [CLS] ${found.cls_share.toFixed(3)}, ` +
      `[SEP] ${found.sep_share.toFixed(3)}, mean distance ${found.mean_distance.toFixed(3)}, ` +
      `entropy ${found.entropy.toFixed(3)} nats`;
  }

  function headAt(event) {
    const box = maps.getBoundingClientRect();
    const head = Math.floor((event.clientX - box.left - MARGIN) / cell);
    const layer = Math.floor((event.clientY - box.top - MARGIN) / cell);
    return head >= 0 && head < heads && layer >= 0 && layer < layers ? [layer, head] : null;
  }

  maps.addEventListener("mousemove", (event) => {
    const [layer, head] = headAt(event) || [state.layer, state.head];
    describe(layer, head);
  });
  maps.addEventListener("mouseleave", () => describe(state.layer, state.head));
  maps.addEventListener("click", (event) => {
    const found = headAt(event);
    if (found) chooseHead(...found);
  });
  maps.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    const [layer, head] = [state.layer + move[0], state.head + move[1]];
    if (layer >= 0 && layer < layers && head >= 0 && head < heads) chooseHead(layer, head);
  });

  // --- lines -------------------------------------------------------------------------------------

  const sides = { query: $("queries"), key: $("keys") };
  for (let token = 0; token < tokens; token++) {
    const label = data.tokens[token];
    const button = make("button", { type: "button", "aria-label": named(token), onclick: () => chooseToken(token) }, label);
    sides.query.append(make("li", {}, button));
    sides.key.append(make("li", {}, make("span", {}, label)));
  }
  for (const [side, list] of Object.entries(sides)) {
    [...list.children].forEach((item, token) => {
      const point = () => {
        state.pointed = { side, token };
        drawLines();
      };
      const leave = () => {
        state.pointed = null;
        drawLines();
      };
      item.addEventListener("mouseenter", point);
      item.addEventListener("mouseleave", leave);
      item.addEventListener("focusin", point);
      item.addEventListener("focusout", leave);
    });
  }

  function drawLines() {
    const canvas = $("links");
    const width = Math.max(40, $("lines").clientWidth - sides.query.offsetWidth - sides.key.offsetWidth);
    const context = prepared(canvas, width, tokens * ROW);
    const drawn = [...state.drawn].sort((a, b) => a - b);
    const pointed = state.pointed || { side: "query", token: state.token };
    const onKeys = new Float64Array(tokens);
    const onQueries = new Float64Array(tokens);
    for (const head of drawn) {
      const weights = attention.weights(state.layer, head);
      context.strokeStyle = page.colour(seriesOf(head));
      for (let from = 0; from < tokens; from++) {
        const isPointed = pointed.side === "query" && pointed.token === from;
        for (let to = 0; to < tokens; to++) {
          const weight = weights[from * tokens + to];
          const isOf = isPointed || (pointed.side === "key" && pointed.token === to);
          if (isOf) {
            onKeys[to] += weight / drawn.length;
            onQueries[from] += weight / drawn.length;
          }
          if (weight < SMALL || !(isOf || $("all").checked)) continue;
          context.globalAlpha = (isOf ? 1 : 0.3) * Math.min(1, weight + 0.05);
          context.lineWidth = isOf ? 2 : 1;
          context.beginPath();
          context.moveTo(0, (from + 0.5) * ROW);
          context.lineTo(width, (to + 0.5) * ROW);
          context.stroke();
        }
      }
    }
    const isQuery = pointed.side === "query";
    const shares = isQuery ? onKeys : onQueries;
    const other = isQuery ? sides.key : sides.query;
    const own = isQuery ? sides.query : sides.key;
    [...other.children].forEach((item, token) => item.style.setProperty("--share", drawn.length ? shares[token] : 0));
    [...own.children].forEach((item) => item.style.setProperty("--share", 0));
    [...sides.query.children].forEach((item, token) => {
      const isChosen = token === state.token;
      item.firstChild.setAttribute("aria-pressed", String(isChosen));
    });
    [...own.children].forEach((item, token) => item.classList.toggle("pointed", token === pointed.token));
    [...other.children].forEach((item) => item.classList.remove("pointed"));
    const best = shares.indexOf(Math.max(...shares));
    const heads_ = drawn.map((head) => head + 1).join(", ");
    const of = drawn.length === 1 ? `head ${heads_}` : `the mean of heads ${heads_}`;
    $("lines-status").textContent = !drawn.length
      ? "No head is drawn."
      : isQuery
        ? `“${data.tokens[pointed.token]}” attends most to “${data.tokens[best]}”: ${number(shares[best])} by ${of}.`
        : `“${data.tokens[best]}” attends most to “${data.tokens[pointed.token]}”: ${number(shares[best])} by ${of}.`;
  }

  // --- table of heads ----------------------------------------------------------------------------

  const table = $("statistics").querySelector("table");
  const statisticRows = [...table.tBodies[0].rows];
  statisticRows.forEach((row, i) => {
    const [layer, head] = [Math.floor(i / heads), i % heads];
    const button = make("button", { type: "button", "aria-label": `layer ${data.layers[layer]}, head ${head + 1}`, onclick: () => chooseHead(layer, head) }, row.cells[0].textContent);
    row.cells[0].replaceChildren(button);
  });
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    const values = new Map(statisticRows.map((row) => [row, Number(row.cells[column].textContent)]));
    const button = make("button", { type: "button" }, cell.textContent);
    button.addEventListener("click", () => {
      const isRising = cell.getAttribute("aria-sort") === "descending" || (column < 2 && cell.getAttribute("aria-sort") !== "ascending");
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", isRising ? "ascending" : "descending");
      const sign = isRising ? 1 : -1;
      const sorted = [...statisticRows].sort((a, b) => sign * (values.get(a) - values.get(b)));
      table.tBodies[0].replaceChildren(...sorted);
    });
    cell.replaceChildren(button);
  });

  // --- all of it ---------------------------------------------------------------------------------

  function show() {
    $("layer").value = state.layer;
    $("head").value = state.head;
    $("token").value = state.token;
    for (const box of $("drawn").querySelectorAll("input")) box.checked = state.drawn.has(Number(box.value));
    $("every").textContent = state.drawn.size === heads ? "Only the chosen head" : "All heads";
    statisticRows.forEach((row, i) => row.classList.toggle("chosen", i === state.layer * heads + state.head));
    markChosen();
    describe(state.layer, state.head);
    drawLines();
    attentionSteps.show(state);
  }

  function redraw() {
    drawMaps();
    show();
  }

  page.onTheme(() => {
    pictures.clear();
    redraw();
  });
  let width = 0;
  new ResizeObserver(() => {
    const now = document.body.clientWidth;
    if (now === width) return;
    width = now;
    redraw();
  }).observe(document.body);
})();
