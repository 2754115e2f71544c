/** Pure: values of the run directory as short text. */

import { text } from "./text";

/** `0,2-3` for [0, 2, 3]. */
export function formatRanks(ranks: number[]): string {
  const sorted = [...new Set(ranks)].sort((a, b) => a - b);
  const parts: string[] = [];
  for (let start = 0; start < sorted.length; ) {
    let end = start;
    while (sorted[end + 1] === sorted[end]! + 1) end++;
    parts.push(start === end ? `${sorted[start]}` : `${sorted[start]}-${sorted[end]}`);
    start = end + 1;
  }
  return parts.join(",");
}

/** A value as raytrain_debug writes it in JSON: numbers shortened, NaN restored, a tensor by its shape and statistics. */
export function formatValue(value: unknown): string {
  if (typeof value === "number") return formatNumber(value);
  if (typeof value === "string") return value;
  if (isObject(value)) {
    if (typeof value["$float"] === "string") return value["$float"];
    if (typeof value["$error"] === "string") return value["$error"];
    if (Array.isArray(value["shape"])) return formatTensor(value, value["shape"]);
    if (typeof value["repr"] === "string") return value["repr"];
  }
  return JSON.stringify(value) ?? "";
}

function formatNumber(value: number): string {
  return Number.isInteger(value) ? `${value}` : `${Number(value.toPrecision(4))}`;
}

function formatTensor(value: Record<string, unknown>, shape: unknown[]): string {
  const parts = [`${`${value["$type"]}`.split(".").at(-1)} [${shape.join(", ")}]`];
  if (value["dtype"] !== undefined) parts.push(`${value["dtype"]}`);
  if (value["values"] !== undefined) parts.push(JSON.stringify(value["values"]));
  for (const name of ["min", "max", "mean", "std"])
    if (value[name] !== undefined && value[name] !== null) parts.push(`${name} ${formatValue(value[name])}`);
  for (const [name, word] of [["nan", "NaN"], ["inf", "Inf"]] as const)
    if (value[name]) parts.push(`${value[name]} ${word}`);
  return parts.join("  ");
}

const STEPS = /^(global_?)?(step|iteration|batch|epoch)s?$/i;

/** `step 12  loss 0.3142  accuracy 0.97`: how far training is, and the first few of the other metrics. */
export function formatMetrics(metrics: Record<string, unknown>, most = 4): string {
  const entries = Object.entries(metrics).sort(([a], [b]) => Number(STEPS.test(b)) - Number(STEPS.test(a)));
  const shown = entries.slice(0, most).map(([name, value]) => `${name} ${shorten(formatValue(value), 24)}`);
  return shown.join("  ") + (entries.length > most ? "  …" : "");
}

/** `12 s ago`, `3 min ago`, `2 h ago`, `5 d ago`. */
export function formatAge(seconds: number): string {
  const units: [number, string][] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const [size, unit] = units.find(([size]) => seconds >= size) ?? [1, "s"];
  return text.ago(Math.max(0, Math.floor(seconds / size)), unit);
}

export function shorten(text: string, most: number): string {
  const line = text.split("\n", 1)[0]!;
  return line.length > most || line.length < text.length ? line.slice(0, most - 1) + "…" : line;
}

/** The number that a value of a report or of `print --json` is, NaN and infinities too; undefined when it is none. */
export function numberOf(value: unknown): number | undefined {
  if (typeof value === "number") return value;
  const special: Record<string, number> = { nan: NaN, inf: Infinity, "-inf": -Infinity };
  return isObject(value) && typeof value["$float"] === "string" ? special[value["$float"]] : undefined;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null;
}
