/** Pure: a breakpoint's condition that lets it stop on some ranks only, beside a condition of the user's own. */

const RANKS = /^\d+(-\d+)?(,\d+(-\d+)?)*$/;
const TERM = String.raw`(?:__rank__ == \d+|\d+ <= __rank__ <= \d+)`;
const OURS = new RegExp(String.raw`^(?:\((${TERM}(?: or ${TERM})+)\)|(${TERM}))(?: and \(([\s\S]*)\))?$`);

export function isRanks(text: string): boolean {
  return RANKS.test(text.replace(/\s/g, ""));
}

/** The condition that holds on `ranks` ("0,2-3"; empty for all) where the user's own condition does too. */
export function withRanks(ranks: string, own: string | undefined): string | undefined {
  const parts = ranks.replace(/\s/g, "").split(",").filter(Boolean);
  if (parts.length === 0) return own;
  const terms = parts.map((part) => {
    const [first, last] = part.split("-");
    return last === undefined ? `__rank__ == ${first}` : `${first} <= __rank__ <= ${last}`;
  });
  const condition = terms.length === 1 ? terms[0]! : `(${terms.join(" or ")})`;
  return own ? `${condition} and (${own})` : condition;
}

/** What `withRanks` was given, read back from the condition; `ranks` is "" for a condition that names none. */
export function readRanks(condition: string | undefined): { ranks: string; own: string | undefined } {
  const found = OURS.exec(condition ?? "");
  if (!found) return { ranks: "", own: condition || undefined };
  const terms = (found[1] ?? found[2])!.split(" or ");
  const parts = terms.map((term) => {
    const [first, last] = term.match(/\d+/g)!;
    return last === undefined ? first : `${first}-${last}`;
  });
  return { ranks: parts.join(","), own: found[3] };
}
