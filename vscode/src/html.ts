/** Pure: the pages of the panels. All that comes from a job is escaped; the only script is ours, by its nonce. */

import { formatRanks, formatValue, numberOf } from "./format";
import { text } from "./text";
import { Comparison, ErrorGroup, PostmortemRank, StackNode, Stacks } from "./types";

export function escape(value: unknown): string {
  const entities: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
  return String(value).replace(/[&<>"']/g, (character) => entities[character]!);
}

/** What a page may load: nothing from the network, no script but the one with the nonce. */
export function contentSecurityPolicy(nonce: string): string {
  return `default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'nonce-${nonce}'; base-uri 'none'; form-action 'none'`;
}

// A click on what names a place in a file, or a command of ours, is told to the extension. It is taken before VS Code's
// own handler sees it, which would open the address of a link.
const SCRIPT = `
const vscode = acquireVsCodeApi();
document.addEventListener("click", (event) => {
  const target = event.target.closest("[data-file],[data-command]");
  if (!target) return;
  event.preventDefault();
  event.stopPropagation();
  vscode.postMessage({ file: target.dataset.file, line: Number(target.dataset.line), command: target.dataset.command });
}, true);`;

const STYLE = `
body { font-family: var(--vscode-font-family); color: var(--vscode-foreground); padding: 0 1em 1em; }
code, pre, td.value { font-family: var(--vscode-editor-font-family); font-size: var(--vscode-editor-font-size); }
table { border-collapse: collapse; }
th, td { text-align: left; padding: 2px 14px 2px 0; border-bottom: 1px solid var(--vscode-widget-border, transparent); vertical-align: top; }
th { color: var(--vscode-descriptionForeground); font-weight: normal; }
td.value { white-space: pre-wrap; }
.number { text-align: right; }
.bad { color: var(--vscode-errorForeground); }
.dim { color: var(--vscode-descriptionForeground); }
.ranks { font-weight: bold; white-space: nowrap; }
section { margin-top: 1em; }
ol { list-style: none; padding-left: 1em; margin: 4px 0; }
.branch .branch { margin: 6px 0 0 1em; padding-left: 1em; border-left: 1px solid var(--vscode-tree-indentGuidesStroke); }
.waits { color: var(--vscode-charts-orange); }
h3 button { margin-left: 1em; }
button { font: inherit; font-size: 13px; font-weight: normal; border: none; padding: 2px 10px; color: var(--vscode-button-secondaryForeground); background: var(--vscode-button-secondaryBackground); }
button.place { padding: 0; color: var(--vscode-textLink-foreground); background: none; cursor: pointer; }
button:focus-visible { outline: 1px solid var(--vscode-focusBorder); }
svg.bars rect { fill: var(--vscode-charts-blue); }
svg.bars rect.bad { fill: var(--vscode-charts-red); }`;

export function page(title: string, body: string, nonce: string): string {
  return `<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${contentSecurityPolicy(nonce)}">
<title>${escape(title)}</title><style>${STYLE}</style></head>
<body>${body}<script nonce="${nonce}">${SCRIPT}</script></body></html>`;
}

/** A page that Python wrote, under our policy in place of its own, with our script and in the editor's light or dark. */
export function guarded(html: string, nonce: string, dark: boolean): string {
  const head = `<head><meta http-equiv="Content-Security-Policy" content="${contentSecurityPolicy(nonce)}">`;
  const script = `<script nonce="${nonce}">${SCRIPT}</script>`;
  return html
    .replace(/<meta[^>]*http-equiv="?Content-Security-Policy[^>]*>/i, "")
    .replaceAll("(prefers-color-scheme: dark)", dark ? "all" : "not all")
    .replace("<head>", () => head)
    .replace(/<\/body>(?![\s\S]*<\/body>)/, () => script + "</body>");
}

function place(file: string, line: number, shown: string): string {
  return `<button class="place" data-file="${escape(file)}" data-line="${line}">${escape(shown)}</button>`;
}

function header(title: string): string {
  return `<h3>${escape(title)} <button data-command="refresh">${escape(text.refresh)}</button></h3>`;
}

function errorRows(errors: ErrorGroup[]): string {
  return errors
    .map((each) => `<p><span class="ranks">${escape(text.ranks(each.ranks))}</span> <span class="bad">${escape(each.error)}</span></p>`)
    .join("");
}

export function stacksBody(stacks: Stacks): string {
  const tree = stacks.tree.map(branch).join("");
  return header(text.stacksTitle) + (tree || `<p>${escape(text.noStacks)}</p>`) + errorRows(stacks.errors);
}

/** A part of the tree: whose it is, what they share, outermost frame first, and below it where they part. */
function branch(node: StackNode): string {
  const frames = node.frames.map((frame) => {
    const name = frame.file.split("/").at(-1)!;
    return `<li>${escape(frame.function)} ${place(frame.file, frame.line, `${name}:${frame.line}`)}</li>`;
  });
  const waits = node.waits === null ? "" : `<li class="waits">${escape(node.waits)}</li>`;
  const ranks = `<span class="ranks">${escape(text.ranks(node.ranks))}</span>`;
  return `<section class="branch">${ranks}<ol>${frames.join("")}${waits}</ol>${node.branches.map(branch).join("")}</section>`;
}

export function comparisonBody(expression: string, comparison: Comparison): string {
  const rows = comparison.groups.map(
    (group) => `<tr><td class="ranks">${escape(formatRanks(group.ranks))}</td><td class="value">${escape(formatValue(group.value))}</td></tr>`,
  );
  const { ranks, value } = text.columns;
  const table = rows.length ? `<table><tr><th>${ranks}</th><th>${value}</th></tr>${rows.join("")}</table>` : "";
  return header(text.compareTitle) + `<p><code>${escape(expression)}</code></p>` + bars(comparison) + table + errorRows(comparison.errors);
}

/** The numbers of all ranks, by rank; undefined unless every value is a number and there are several. */
export function numbersByRank(comparison: Comparison): Map<number, number> | undefined {
  const numbers = new Map<number, number>();
  for (const group of comparison.groups) {
    const number = numberOf(group.value);
    if (number === undefined) return undefined;
    for (const rank of group.ranks) numbers.set(rank, number);
  }
  return numbers.size > 1 ? new Map([...numbers].sort(([a], [b]) => a - b)) : undefined;
}

/** Where each number lies between the lowest (0) and the highest (1); undefined for what is not finite. */
export function heights(numbers: number[]): (number | undefined)[] {
  const finite = numbers.filter(Number.isFinite);
  const low = Math.min(...finite);
  const span = Math.max(...finite) - low;
  return numbers.map((number) => (!Number.isFinite(number) ? undefined : span ? (number - low) / span : 0.5));
}

function bars(comparison: Comparison): string {
  const numbers = numbersByRank(comparison);
  if (!numbers) return "";
  const width = Math.max(2, Math.min(16, Math.floor(640 / numbers.size)));
  const ranks = [...numbers.keys()];
  const shapes = heights([...numbers.values()]).map((height, index) => {
    const tall = height === undefined ? 40 : 3 + 37 * height;
    const tip = `${text.rank(ranks[index]!)}: ${formatValue(numbers.get(ranks[index]!))}`;
    const kind = height === undefined ? ' class="bad"' : "";
    return `<rect${kind} x="${index * width}" y="${40 - tall}" width="${width - 1}" height="${tall}"><title>${escape(tip)}</title></rect>`;
  });
  return `<svg class="bars" role="img" aria-label="${escape(sparkline(comparison))}" width="${numbers.size * width}" height="40">${shapes.join("")}</svg>`;
}

/** The numbers of all ranks as a row of block characters, `!` for what is not finite; "" when they are no numbers. */
export function sparkline(comparison: Comparison): string {
  const numbers = numbersByRank(comparison);
  if (!numbers) return "";
  return heights([...numbers.values()]).map((height) => (height === undefined ? "!" : "▁▂▃▄▅▆▇█"[Math.round(height * 7)])).join("");
}

/** The comparison as Markdown for a hover. Values stand in code spans, so that nothing in them is markup. */
export function comparisonMarkdown(comparison: Comparison): string {
  const line = (ranks: number[], value: string) => `**${text.ranks(ranks)}** ${codeSpan(value)}`;
  const lines = comparison.groups.map((group) => line(group.ranks, formatValue(group.value)));
  lines.push(...comparison.errors.map((each) => line(each.ranks, each.error)));
  const spark = sparkline(comparison);
  return [...(spark ? [codeSpan(spark)] : []), ...lines].join("  \n");
}

function codeSpan(value: string): string {
  const content = value.replace(/\s+/g, " ");
  const fence = "`".repeat(1 + Math.max(0, ...(content.match(/`+/g) ?? []).map((ticks) => ticks.length)));
  return `${fence} ${content} ${fence}`;
}

export function checkpointBody(rank: PostmortemRank): string {
  const { file, tensor, shape, dtype, min, max, mean, nan, inf, size } = text.columns;
  const head = (names: string[]) => `<tr>${names.map((name) => `<th>${escape(name)}</th>`).join("")}</tr>`;
  const cell = (value: unknown, bad = false) => `<td class="number${bad ? " bad" : ""}">${escape(value === null ? "" : formatValue(value))}</td>`;
  const checkpoint = rank.checkpoint!;
  const files = checkpoint.files.map((each) => `<tr><td>${escape(each.path)}</td>${cell(each.size)}</tr>`);
  const tensors = checkpoint.tensors.map(
    (each) =>
      `<tr><td>${escape(each.file)}</td><td>${escape(each.name)}</td><td>${escape(`[${each.shape.join(", ")}]`)}</td><td>${escape(each.dtype)}</td>` +
      cell(each.min) + cell(each.max) + cell(each.mean) + cell(each.nan, !!each.nan) + cell(each.inf, !!each.inf) + "</tr>",
  );
  return (
    `<h3>${escape(text.checkpointTitle(rank.rank))}</h3><p class="dim">${escape(checkpoint.snapshot ?? "")}</p>` +
    `<table>${head([file, size])}${files.join("")}</table><section></section>` +
    `<table>${head([file, tensor, shape, dtype, min, max, mean, nan, inf])}${tensors.join("")}</table>`
  );
}
