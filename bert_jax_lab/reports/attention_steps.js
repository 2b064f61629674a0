// The view of one token of one head: how its weights are computed, step by step.
"use strict";
const attentionSteps = (() => {
  const { data, tokens, size } = attention;
  const { make } = page;
  const $ = (id) => document.getElementById(id);
  let chosen = null;
  // Never "-0.0000".
  const number = (x) => (Number(x.toFixed(4)) + 0).toFixed(4);
  const named = (token) => {
    const sequences = data.sequence_ids[tokens - 1] > 1 ? ` (sequence ${data.sequence_ids[token]})` : "";
    return `${token + 1} ${data.tokens[token]}${sequences}`;
  };

  // A canvas of this size in CSS pixels, sharp on every screen; returns its cleared context.
  function prepared(canvas, width, height) {
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    canvas.width = Math.max(1, Math.round(width * ratio));
    canvas.height = Math.max(1, Math.round(height * ratio));
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    return context;
  }

  // A vector as a row of colored cells, `step` pixels each.
  function strip(values, most, colours, step) {
    const canvas = make("canvas", { class: "strip", "aria-hidden": "true" });
    const context = prepared(canvas, step * size, 16);
    for (let i = 0; i < size; i++) {
      context.globalAlpha = most ? Math.min(1, Math.abs(values[i]) / most) : 0;
      context.fillStyle = colours[values[i] < 0 ? 1 : 0];
      context.fillRect(i * step, 0, step, 16);
    }
    return canvas;
  }

  function largest(vectors) {
    let most = 0;
    for (const vector of vectors) for (const x of vector) most = Math.max(most, Math.abs(x));
    return most;
  }

  // `state` has the chosen layer, head, token and key.
  function show(state) {
    chosen = state;
    const { layer, head, token } = state;
    const asking = attention.q(layer, head, token);
    const steps = attention.steps(layer, head, token);
    const keys = steps.map((step) => attention.k(layer, head, step.token));
    const products = keys.map((key) => Float64Array.from(key, (x, i) => x * asking[i]));
    const [most, mostProduct] = [largest([asking, ...keys]), largest(products)];
    const isWide = $("neurons").closest(".scroll").clientWidth > 700;
    const step = Math.max(1, Math.min(8, Math.floor((isWide ? 260 : 64) / size)));
    // Read once, because each read makes the browser lay out the page.
    const colours = [page.colour("series-0"), page.colour("series-1")];
    const cells = (values, largest) => make("td", {}, strip(values, largest, colours, step));
    const columns = ["token", "k", "q × k", "q·k / √d"];
    if (attention.hasPosition) columns.push("position", "score");
    columns.push("softmax");
    const heading = (text) => make("th", { scope: "col" }, text);
    $("neurons").tHead.replaceChildren(
      make("tr", { class: "asking" }, make("th", { scope: "row" }, `q of ${named(token)}`), cells(asking, most), make("td", { colspan: columns.length - 2 })),
      make("tr", {}, ...columns.map(heading)),
    );
    const order = steps.map((_, i) => i);
    if ($("order").value === "weight") order.sort((a, b) => steps[b].weight - steps[a].weight);
    const rows = order.map((i) => {
      const found = steps[i];
      const { product, position, score, weight } = found;
      const button = make("button", { type: "button", "aria-label": named(found.token), onclick: () => choosePair(found.token) }, data.tokens[found.token]);
      const numbers = attention.hasPosition ? [product, position, score] : [product];
      const bar = make("td", { class: "share" }, number(weight));
      bar.style.setProperty("--share", weight);
      const row = make(
        "tr",
        { "data-token": found.token },
        make("th", { scope: "row" }, button),
        cells(keys[i], most),
        cells(products[i], mostProduct),
        ...numbers.map((value) => make("td", {}, number(value))),
        bar,
      );
      row.classList.toggle("chosen", found.token === state.key);
      return row;
    });
    $("neurons").tBodies[0].replaceChildren(...rows);
    const others = data.sequence_ids.filter((sequence) => sequence !== data.sequence_ids[token]).length;
    const beyond = tokens - steps.length - others; // the window of the layer
    $("neuron-status").textContent = [
      others ? `${others} tokens of other sequences are masked.` : "",
      beyond ? `${beyond} tokens outside the layer's window are masked.` : "",
    ].join(" ").trim();
    showPair(steps);
  }

  function choosePair(token) {
    chosen.key = token;
    for (const row of $("neurons").tBodies[0].rows) {
      row.classList.toggle("chosen", Number(row.dataset.token) === token);
    }
    showPair(attention.steps(chosen.layer, chosen.head, chosen.token));
  }

  function showPair(steps) {
    const { layer, head, token, key } = chosen;
    const step = steps.find((found) => found.token === key);
    const [asking, asked] = [attention.q(layer, head, token), attention.k(layer, head, key)];
    const added = attention.hasPosition ? `; with ${number(step.position)} for the position, ${number(step.score)}` : "";
    $("pair").textContent =
      `From “${data.tokens[token]}” (${token + 1}) to “${data.tokens[key]}” (${key + 1}), layer ` +
      `${data.layers[layer]}, head ${head + 1}: q·k = ${number(step.sum)}; divided by √${size} it is ` +
      `${number(step.product)}${added}. Its softmax among ${steps.length} tokens is ${number(step.weight)}.`;
    const rows = Array.from(asking, (x, i) =>
      make("tr", {}, make("th", { scope: "row" }, String(i + 1)), ...[x, asked[i], x * asked[i]].map((value) => make("td", { class: value < 0 ? "minus" : "plus" }, number(value)))),
    );
    $("pair-table").tBodies[0].replaceChildren(...rows);
  }

  $("neurons").addEventListener("mousemove", (event) => {
    const canvas = event.target.closest("canvas.strip");
    if (!canvas) return;
    const box = canvas.getBoundingClientRect();
    const dim = Math.max(0, Math.min(size - 1, Math.floor(((event.clientX - box.left) / box.width) * size)));
    const { layer, head, token } = chosen;
    const x = attention.q(layer, head, token)[dim];
    const row = canvas.closest("tr").dataset.token;
    const text = `Dimension ${dim + 1} of ${size}: q ${number(x)}`;
    if (row === undefined) {
      $("neuron-status").textContent = text;
      return;
    }
    const y = attention.k(layer, head, Number(row))[dim];
    $("neuron-status").textContent = `${text} × k ${number(y)} = ${number(x * y)}, for “${data.tokens[row]}”`;
  });

  $("order").addEventListener("change", () => show(chosen));

  return { number, named, prepared, show };
})();
