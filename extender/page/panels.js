// The words beside the cells: one card, the tenants, the pods that wait, the chart, and the table of nodes.
// All text goes in as text, never as HTML: names come from whoever may create pods.
import {MODEL, MIB, MILLI, REASON, USED, BUSY, FOREIGN, SHARES, UUID} from "./grid.js";

export const PAGE = 200; // rows of the table
const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function mib(amount) {
  if (amount < 1024) return `${amount} MiB`;
  const [size, unit] = amount < 1 << 20 ? [amount / 1024, "GiB"] : [amount / (1 << 20), "TiB"];
  return `${size.toFixed(1).replace(/\.0$/, "")} ${unit}`;
}

export function percent(milli) {
  return `${(milli / 10).toFixed(1).replace(/\.0$/, "")} %`;
}

export function element(name, text = "", kind = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

export function sum(cards, what) {
  let total = 0;
  for (const card of cards) for (const share of card[SHARES]) total += share[what];
  return total;
}

// Say all that is known of a card.
export function describe(node, number) {
  const [name, closed, cards] = node, card = cards[number];
  const mine = [card];
  const lines = [
    `${name}, card ${number}: ${card[MODEL] || "model not told"}`,
    `Memory: ${mib(sum(mine, 2))} of ${mib(card[MIB])} promised` + (card[USED] === null ? "" : `, ${mib(card[USED])} used`),
    `Compute: ${percent(sum(mine, 3))} of ${percent(card[MILLI])} promised` + (card[BUSY] === null ? "" : `, ${card[BUSY]} % busy`),
  ];
  if (card[FOREIGN]) lines.push(`${mib(card[FOREIGN])} are used by nobody we know.`);
  for (const reason of [closed, card[REASON]]) if (reason) lines.push(`Takes nothing: ${reason}.`);
  for (const [tenant, pod, m, k] of card[SHARES]) lines.push(`${tenant}/${pod}: ${mib(m)}, ${percent(k)}`);
  if (!card[SHARES].length) lines.push("Nobody is on it.");
  lines.push(card[UUID]);
  return lines;
}

export function showCard(lines) {
  byId("card").replaceChildren(...lines.map((line, i) => element("p", line, i === lines.length - 1 ? "quiet" : "")));
}

export function showTenants(totals, colours, chosen, choose) {
  const most = [...totals].sort((a, b) => b[1] - a[1]).slice(0, 14);
  byId("tenants").replaceChildren(...most.map(([tenant, total]) => {
    const item = element("li"), button = element("button"), swatch = element("span", "", "swatch");
    swatch.style.backgroundColor = colours.css(tenant);
    button.type = "button";
    button.setAttribute("aria-pressed", String(tenant === chosen));
    button.append(swatch, `${tenant} ${mib(total)}`);
    button.addEventListener("click", () => choose(tenant === chosen ? "" : tenant));
    item.append(button);
    return item;
  }));
}

export function showPending(pods, count) {
  byId("pending-head").textContent = count ? `Waiting: ${count} ${count === 1 ? "pod" : "pods"}` : "No pod waits";
  byId("pending").replaceChildren(...pods.map(({namespace, pod, asks, why}) => {
    const item = element("li");
    item.append(element("strong", `${namespace}/${pod}`), element("p", asks), element("p", why, "quiet"));
    return item;
  }));
}

const LINES = [["memory", "memory promised", 1], ["compute", "compute promised", 2], ["fragments", "free compute that is fragmented", 3]];

export function showChart(history) {
  const key = LINES.map(([kind, told, at]) => {
    const item = element("li", "", kind), last = history.length ? history[history.length - 1][at] : 0;
    item.append(`— ${told}: ${percent(last)}`);
    return item;
  });
  byId("key").replaceChildren(...key);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 100 100");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  const since = history.length > 1 ? Math.round((history[history.length - 1][0] - history[0][0]) / 60) : 0;
  svg.setAttribute("aria-label", `The last ${since} minutes; the last values stand below.`);
  const first = history.length ? history[0][0] : 0, span = Math.max(history.length ? history[history.length - 1][0] - first : 1, 1);
  for (const [kind, , at] of LINES) {
    const line = document.createElementNS(SVG, "polyline");
    line.setAttribute("class", kind);
    line.setAttribute("points", history.map((s) => `${(100 * (s[0] - first) / span).toFixed(1)},${(100 - Math.min(s[at], 1000) / 10).toFixed(1)}`).join(" "));
    svg.append(line);
  }
  byId("chart").replaceChildren(svg);
}

export function showTable(nodes, page) {
  const last = Math.max(0, Math.ceil(nodes.length / PAGE) - 1), shown = Math.min(page, last);
  const some = nodes.slice(shown * PAGE, (shown + 1) * PAGE);
  byId("rows").replaceChildren(...some.map(([name, closed, cards]) => {
    const row = element("tr"), head = element("th", name);
    head.scope = "row";
    const has = (what) => cards.reduce((total, card) => total + card[what], 0);
    const pods = new Set(cards.flatMap((card) => card[SHARES].map((s) => `${s[0]}/${s[1]}`)));
    const bad = cards.filter((card) => card[REASON]).length;
    row.append(
      head,
      element("td", [...new Set(cards.map((card) => card[MODEL]))].join(", ")),
      element("td", String(cards.length)),
      element("td", `${mib(sum(cards, 2))} of ${mib(has(MIB))}`),
      element("td", `${percent(sum(cards, 3))} of ${percent(has(MILLI))}`),
      element("td", [...pods].slice(0, 6).join(", ") + (pods.size > 6 ? ` and ${pods.size - 6} more` : "")),
      element("td", closed || (bad ? `${bad} cards take nothing` : "offered")),
    );
    return row;
  }));
  byId("caption").textContent = `${nodes.length} nodes with cards`;
  byId("where").textContent = `page ${shown + 1} of ${last + 1}`;
  byId("back").disabled = shown === 0;
  byId("next").disabled = shown === last;
  return shown;
}
