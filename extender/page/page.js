// The page: asks for what changed, keeps what it knows, and draws when something is different.
import {at, fit, layout, lineOf, paint, theme, LEAST, MOST, MODEL, SHARES, MIB, MILLI} from "./grid.js";
import {byId, describe, mib, percent, showCard, showChart, showPending, showTable, showTenants} from "./panels.js";

const PAUSE = 2000, LATE = 10000;
const canvas = byId("canvas"), scroller = byId("scroller"), context = canvas.getContext("2d", {alpha: false});
const dark = matchMedia("(prefers-color-scheme: dark)");

const known = new Map(); // node by name
const offered = {model: new Set(), tenant: new Set()}; // what the filters can name
let nodes = []; // those that the filters let through, by name
let tag = "", heard = performance.now();
let colours = theme(dark.matches);
let plan = layout([], 1, LEAST), size = 0; // size 0: as large as fits
let image = null, pixels = null;
let here = null; // [node, card] that is looked at
let asTable = false, page = 0;
let drawing = false, sorted = false;

// --- what is known ----------------------------------------------------------------------------------------------

// Take in an answer.
export function take(state) {
  if (state.whole) known.clear();
  for (const node of state.nodes) {
    sorted &&= known.has(node[0]) === node[2].length > 0;
    if (node[2].length) {
      known.set(node[0], node);
      for (const card of node[2]) {
        offered.model.add(card[MODEL]);
        for (const share of card[SHARES]) offered.tenant.add(share[0]);
      }
    } else {
      known.delete(node[0]);
    }
  }
  if (state.whole) sorted = false;
  if (state.tag) tag = state.tag;
  trouble(state.refusal || "");
  if (state.pending) showPending(state.pending, state.waiting);
  if (state.history) showChart(state.history);
  if (state.nodes.length || state.whole) changed();
}

// Sort, filter, sum up and lay out anew.
function changed() {
  for (const [id, names] of Object.entries(offered)) choices(byId(id), names);
  const chosen = [byId("node").value.trim().toLowerCase(), byId("model").value, byId("tenant").value];
  if (offered.tenant.size > colours.met) for (const tenant of [...offered.tenant].sort()) colours.css(tenant);
  const totals = new Map(), before = here && nodes[here[0]]?.[0];
  let cards = 0, has = 0, promised = 0, can = 0, given = 0;
  nodes = everything().filter((node) => passes(node, ...chosen));
  for (const node of nodes) {
    for (const card of node[2]) {
      cards++;
      has += card[MIB];
      can += card[MILLI];
      for (const [tenant, , m, k] of card[SHARES]) {
        totals.set(tenant, (totals.get(tenant) || 0) + m);
        promised += m;
        given += k;
      }
    }
  }
  colours.only = chosen[2];
  const ratio = (part, all) => percent(all ? 1000 * part / all : 0);
  byId("sums").textContent = `${nodes.length} nodes, ${cards} cards; memory ${ratio(promised, has)} of ${mib(has)}, compute ${ratio(given, can)} promised`;
  showTenants(totals, colours, chosen[2], choose);
  if (here) {
    const now = nodes.findIndex((node) => node[0] === before);
    here = now < 0 ? null : [now, Math.min(here[1], nodes[now][2].length - 1)];
  }
  if (here) showCard(describe(nodes[here[0]], here[1]));
  if (asTable) page = showTable(nodes, page);
  arrange();
}

let ordered = [];
function everything() {
  if (!sorted) {
    ordered = [...known.keys()].sort();
    sorted = true;
  }
  return ordered.map((name) => known.get(name));
}

function passes([name, , cards], part, model, tenant) {
  return (!part || name.toLowerCase().includes(part))
    && (!model || cards.some((card) => card[MODEL] === model))
    && (!tenant || cards.some((card) => card[SHARES].some((share) => share[0] === tenant)));
}

// Offer the models and tenants that have been seen.
function choices(list, names) {
  if (list.options.length === names.size + 1) return;
  const was = list.value;
  list.replaceChildren(new Option("all", ""), ...[...names].sort().map((name) => new Option(name, name)));
  list.value = was;
}

function choose(tenant) {
  byId("tenant").value = tenant;
  changed();
}

// --- drawing ----------------------------------------------------------------------------------------------------

function arrange() {
  const {clientWidth: width, clientHeight: height} = scroller;
  if (!width || !height) return;
  plan = layout(nodes, width, size || fit(nodes, width, height));
  byId("space").style.height = `${plan.height}px`;
  const ratio = devicePixelRatio, wide = Math.round(width * ratio), high = Math.round(height * ratio);
  if (canvas.width !== wide || canvas.height !== high || !image) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    image = context.createImageData(wide, high);
    pixels = new Uint32Array(image.data.buffer);
  }
  redraw();
}

export function redraw() {
  if (!drawing) {
    drawing = true;
    requestAnimationFrame(draw);
  }
}

function draw() {
  drawing = false;
  if (!image || asTable) return;
  const top = scroller.scrollTop, ratio = devicePixelRatio;
  paint(image, pixels, plan, nodes, top, ratio, colours);
  context.putImageData(image, 0, 0);
  if (here) outline(top, ratio);
  if (nodes.length && !performance.getEntriesByName("cells").length) performance.mark("cells");
}

function outline(top, ratio) {
  const [line, i] = lineOf(plan, here[0]), {y, xs} = plan.lines[line];
  const x = xs[i] + here[1] * plan.cell;
  context.strokeStyle = dark.matches ? "#ffffff" : "#000000";
  context.lineWidth = 2 * ratio;
  context.strokeRect((x - 1) * ratio, (y - top - 1) * ratio, (plan.cell + 1) * ratio, (plan.cell + 1) * ratio);
}

// --- looking at a card ------------------------------------------------------------------------------------------

function look(found) {
  if (found && here && found[0] === here[0] && found[1] === here[1]) return;
  here = found;
  if (here) showCard(describe(nodes[here[0]], here[1]));
  redraw();
}

function move(nodesBy, cardsBy, linesBy = 0) {
  if (!nodes.length) return;
  let [node, card] = here || [0, 0];
  if (here && linesBy) {
    const [line, i] = lineOf(plan, node);
    const to = plan.lines[Math.min(Math.max(line + linesBy, 0), plan.lines.length - 1)];
    node = to.first + Math.min(i, to.xs.length - 1);
  } else if (here) {
    card += cardsBy;
    if (card < 0 && node > 0) card = nodes[--node][2].length - 1;
    else if (card >= nodes[node][2].length && node + 1 < nodes.length) [node, card] = [node + 1, 0];
    node = Math.min(Math.max(node + nodesBy, 0), nodes.length - 1);
  }
  go(node, Math.min(Math.max(card, 0), nodes[node][2].length - 1));
}

// Look at a card, and bring it into view.
function go(node, card) {
  if (!nodes.length) return;
  look([node, card]);
  const {y} = plan.lines[lineOf(plan, node)[0]];
  if (y < scroller.scrollTop) scroller.scrollTop = y;
  if (y + plan.step > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = y + plan.step - scroller.clientHeight;
}

function resize(by) {
  size = by ? Math.min(Math.max(plan.cell + (plan.cell + by > 12 ? 4 * by : by), LEAST), MOST) : 0;
  arrange();
}

const KEYS = {
  ArrowRight: () => move(0, 1), ArrowLeft: () => move(0, -1), ArrowDown: () => move(0, 0, 1), ArrowUp: () => move(0, 0, -1),
  PageDown: () => move(0, 0, 10), PageUp: () => move(0, 0, -10),
  Home: () => go(0, 0), End: () => go(nodes.length - 1, 0),
  "+": () => resize(1), "=": () => resize(1), "-": () => resize(-1), 0: () => resize(0),
};

canvas.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
  event.preventDefault();
  KEYS[event.key]();
});
canvas.addEventListener("pointermove", (event) => look(at(plan, nodes, event.offsetX, event.offsetY + scroller.scrollTop)));
scroller.addEventListener("scroll", redraw, {passive: true});
new ResizeObserver(arrange).observe(scroller);
dark.addEventListener("change", () => { colours = theme(dark.matches); changed(); });
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("filters").addEventListener("input", () => { page = 0; changed(); });
byId("smaller").addEventListener("click", () => resize(-1));
byId("larger").addEventListener("click", () => resize(1));
byId("fit").addEventListener("click", () => resize(0));
byId("back").addEventListener("click", () => { page = showTable(nodes, page - 1); });
byId("next").addEventListener("click", () => { page = showTable(nodes, page + 1); });
byId("table-button").addEventListener("click", () => {
  asTable = !asTable;
  byId("table-button").setAttribute("aria-pressed", String(asTable));
  byId("table").hidden = !asTable;
  scroller.hidden = asTable;
  changed();
});

// --- asking -----------------------------------------------------------------------------------------------------

function trouble(sentence) {
  const place = byId("trouble");
  place.hidden = !sentence;
  if (place.textContent !== sentence) place.textContent = sentence;
}

async function ask() {
  const headers = tag ? {"If-None-Match": `W/"${tag}"`} : {};
  const reply = await fetch(`page/state?since=${encodeURIComponent(tag)}`, {headers, signal: AbortSignal.timeout(LATE)});
  if (reply.status === 304) trouble("");
  else if (reply.ok) take(await reply.json());
  else throw new Error(`it answers ${reply.status}`);
  heard = performance.now();
}

async function keepAsking() {
  for (;;) {
    if (!document.hidden) {
      try {
        await ask();
      } catch (error) {
        trouble(`No answer for ${Math.round((performance.now() - heard) / 1000)} s: ${error.message}. What is shown may be old.`);
      }
    }
    await new Promise((go) => setTimeout(go, PAUSE));
  }
}

window.tessera = {take, redraw, nodes: () => nodes, plan: () => plan, here: () => here}; // for the console and tests
keepAsking();
