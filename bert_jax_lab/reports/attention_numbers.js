// The numbers that the attention page computes from the stored queries and keys, in double precision.
"use strict";
const attention = (() => {
  const data = page.data;
  const tokens = data.tokens.length;
  const heads = data.num_heads;
  const size = data.head_size;

  // Little-endian float32, as attention_document.py writes it.
  function decode(stored) {
    if (!stored) return null;
    const raw = atob(stored.data);
    const bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    return new Float32Array(bytes.buffer);
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
