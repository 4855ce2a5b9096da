// Where each card is, and how it is painted. Cells are written into one image as 32-bit pixels: forty thousand of
// them are a few milliseconds, where as many rectangles would be a tenth of a second.

export const LEAST = 4, MOST = 48;
const GAP = 3; // between nodes, in cells' pixels

// Cards of a node as the state has them.
export const UUID = 0, MODEL = 1, MIB = 2, MILLI = 3, REASON = 4, USED = 5, BUSY = 6, FOREIGN = 7, SHARES = 8;

// Place nodes one after another, line by line. Returns {cell, lines, height}; a line has y, its nodes and their x.
export function layout(nodes, width, cell) {
  const lines = [];
  let line = null, x = 0, y = 0;
  const step = cell + (cell < 8 ? 2 : 4);
  nodes.forEach((node, at) => {
    const wide = node[2].length * cell + GAP;
    if (!line || x + wide > width) {
      if (line) y += step;
      line = {y, first: at, xs: []};
      lines.push(line);
      x = 0;
    }
    line.xs.push(x);
    x += wide;
  });
  return {cell, step, lines, height: lines.length ? y + step : 0};
}

// The largest cells with which everything fits, or the smallest there are.
export function fit(nodes, width, height) {
  const cards = nodes.reduce((count, node) => count + node[2].length, 0);
  const most = Math.ceil(Math.sqrt(width * height / Math.max(cards, 1)));
  for (let cell = Math.min(most, MOST); cell > LEAST; cell--) {
    if (layout(nodes, width, cell).height <= height) return cell;
  }
  return LEAST;
}

// Which card is at a place of the whole: [node, card] as indices, or null.
export function at(plan, nodes, x, y) {
  const line = plan.lines[Math.floor(y / plan.step)];
  if (!line || x < 0 || y < 0) return null;
  for (let i = line.xs.length - 1; i >= 0; i--) {
    if (x >= line.xs[i]) {
      const card = Math.floor((x - line.xs[i]) / plan.cell), node = line.first + i;
      return card < nodes[node][2].length ? [node, card] : null;
    }
  }
  return null;
}

// Where a node is: [line, index in it].
export function lineOf(plan, node) {
  let low = 0, high = plan.lines.length - 1;
  while (low < high) {
    const mid = (low + high + 1) >> 1;
    if (plan.lines[mid].first <= node) low = mid; else high = mid - 1;
  }
  return [low, node - plan.lines[low].first];
}

// Paint the lines from `top` on into an image of `ratio` device pixels a pixel.
export function paint(image, pixels, plan, nodes, top, ratio, colours) {
  const {width, height} = image;
  pixels.fill(colours.ground);
  const first = Math.max(0, Math.floor(top / plan.step));
  for (let l = first; l < plan.lines.length; l++) {
    const line = plan.lines[l], y = Math.round((line.y - top) * ratio);
    if (y >= height) break;
    for (let i = 0; i < line.xs.length; i++) {
      const [, closed, cards] = nodes[line.first + i];
      for (let c = 0; c < cards.length; c++) {
        const x = Math.round((line.xs[i] + c * plan.cell) * ratio);
        cellAt(pixels, width, height, x, y, Math.round(plan.cell * ratio), cards[c], closed, colours);
      }
    }
  }
}

function cellAt(pixels, width, height, x, y, cell, card, closed, colours) {
  const size = cell - 1, half = size >> 1;
  const out = closed !== "" || card[REASON] !== "";
  const empty = out ? colours.out : colours.empty;
  rect(pixels, width, height, x, y, size, size, empty);
  let mib = 0, milli = 0;
  const shares = card[SHARES];
  for (let i = 0; i < shares.length; i++) {
    const [tenant, , m, k] = shares[i];
    const colour = colours.of(tenant, i);
    mib = bar(pixels, width, height, x, y, half, size, mib, m, card[MIB], colour);
    milli = bar(pixels, width, height, x + half, y, size - half, size, milli, k, card[MILLI], colour);
  }
  if (out) hatch(pixels, width, height, x, y, size, colours.bad);
}

// A part of a stack that grows from the bottom. Returns where the next begins.
function bar(pixels, width, height, x, y, wide, size, from, amount, all, colour) {
  if (!all) return from;
  const to = from + amount;
  const low = Math.round(size * Math.min(1, from / all));
  const high = Math.max(Math.round(size * Math.min(1, to / all)), amount && low < size ? low + 1 : low);
  rect(pixels, width, height, x, y + size - high, wide, high - low, colour);
  return to;
}

function rect(pixels, width, height, x, y, wide, high, colour) {
  const right = Math.min(x + wide, width), bottom = Math.min(y + high, height);
  for (let row = Math.max(y, 0); row < bottom; row++) {
    for (let i = row * width + x, end = row * width + right; i < end; i++) pixels[i] = colour;
  }
}

// What takes nothing is told apart by form, too: a diagonal.
function hatch(pixels, width, height, x, y, size, colour) {
  for (let i = 0; i < size; i++) {
    const row = y + i;
    if (row >= 0 && row < height && x + i < width) pixels[row * width + x + i] = colour;
  }
}

// Colours of the theme: tenants have hues in the order in which they are met, the pods of one on a card two shades.
export function theme(dark) {
  const known = new Map();
  const shades = (tenant) => {
    let found = known.get(tenant);
    if (!found) {
      const hue = (210 + known.size * 137.508) % 360, shift = 9 * (Math.floor(known.size / 7) % 3);
      found = dark ? [pixel(hue, 60, 66 - shift), pixel(hue, 60, 54 - shift)] : [pixel(hue, 62, 42 + shift), pixel(hue, 62, 54 + shift)];
      known.set(tenant, found);
    }
    return found;
  };
  const grey = dark ? [pixel(0, 0, 38), pixel(0, 0, 33)] : [pixel(0, 0, 74), pixel(0, 0, 79)];
  return {
    ground: dark ? pixel(220, 16, 7) : pixel(0, 0, 100),
    empty: dark ? pixel(220, 10, 18) : pixel(220, 14, 90),
    out: dark ? pixel(0, 30, 20) : pixel(0, 45, 90),
    bad: dark ? pixel(5, 90, 70) : pixel(3, 71, 41),
    get met() { return known.size; },
    only: "", // the tenant that alone has colours
    of(tenant, i) {
      return (this.only && tenant !== this.only ? grey : shades(tenant))[i & 1];
    },
    css(tenant) {
      const p = shades(tenant)[0];
      return `rgb(${p & 255} ${(p >> 8) & 255} ${(p >> 16) & 255})`;
    },
  };
}

// A colour as one little-endian pixel.
function pixel(hue, saturation, lightness) {
  const s = saturation / 100, l = lightness / 100, a = s * Math.min(l, 1 - l);
  const part = (n) => {
    const k = (n + hue / 30) % 12;
    return Math.round(255 * (l - a * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return ((255 << 24) | (part(4) << 16) | (part(8) << 8) | part(0)) >>> 0;
}
