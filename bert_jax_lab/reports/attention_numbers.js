// The numbers that the attention page computes from the stored queries and keys, in double precision.
"use strict";
const attention = (() => {
  const data = page.data;
  const tokens = data.tokens.length;
  const heads = data.num_heads;
  const size = data.head_size;

  function bytes(text) {
    const raw = atob(text);
    const found = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) found[i] = raw.charCodeAt(i);
    return found.buffer;
  }

  // The format of attention_document.py: float32, or int16 with a scale for each vector.
  function decode(stored) {
    if (!stored) return null;
    if (stored.type === "float32") return new Float32Array(bytes(stored.data));
    const numbers = new Int16Array(bytes(stored.data));
    const scales = new Float32Array(bytes(stored.scales));
    const width = stored.shape[stored.shape.length - 1];
    const found = new Float32Array(numbers.length);
    for (let row = 0, i = 0; row < scales.length; row++) {
      for (const end = i + width; i < end; i++) found[i] = numbers[i] * scales[row];
    }
    return found;
  }

  const query = decode(data.query);
  const key = decode(data.key);
  const position = decode(data.position);
  // Shared by all layers if it is equal in each.
  const positionLayers = position ? data.position.shape[0] : 0;

  function vector(array, layer, head, token) {
    const start = ((layer * heads + head) * tokens + token) * size;
    return array.subarray(start, start + size);
  }

  const q = (layer, head, token) => vector(query, layer, head, token);
  const k = (layer, head, token) => vector(key, layer, head, token);

  function sees(layer, from, to) {
    if (data.seen) return data.seen.kinds[data.seen.layers[layer]][from][to] === "1";
    return data.sequence_ids[from] === data.sequence_ids[to];
  }

  function dot(a, b) {
    let sum = 0;
    for (let i = 0; i < size; i++) sum += a[i] * b[i];
    return sum;
  }

  function added(layer, head, from, to) {
    if (!position) return 0;
    const row = (Math.min(layer, positionLayers - 1) * heads + head) * tokens + from;
    return position[row * tokens + to];
  }

  // The steps from one token to each token that it attends to: {token, product, position, score, weight}.
  function steps(layer, head, from) {
    const asking = q(layer, head, from);
    const found = [];
    let most = -Infinity;
    for (let to = 0; to < tokens; to++) {
      if (!sees(layer, from, to)) continue;
      const sum = dot(asking, k(layer, head, to));
      const product = sum / Math.sqrt(size);
      const more = added(layer, head, from, to);
      found.push({ token: to, sum, product, position: more, score: product + more, weight: 0 });
      most = Math.max(most, product + more);
    }
    let total = 0;
    for (const step of found) total += step.weight = Math.exp(step.score - most);
    for (const step of found) step.weight /= total;
    return found;
  }

  const kept = new Map();

  // All weights of a head, one row per query token; 0 for masked keys.
  function weights(layer, head) {
    const name = layer * heads + head;
    if (!kept.has(name)) {
      const found = new Float32Array(tokens * tokens);
      for (let from = 0; from < tokens; from++) {
        for (const step of steps(layer, head, from)) found[from * tokens + step.token] = step.weight;
      }
      kept.set(name, found);
    }
    return kept.get(name);
  }

  return { data, tokens, heads, size, layers: data.layers.length, hasPosition: !!position, q, k, sees, steps, weights };
})();
