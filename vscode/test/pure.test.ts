import assert from "node:assert/strict";
import { test } from "node:test";
import { isRanks, readRanks, withRanks } from "../src/conditions";
import { formatAge, formatMetrics, formatRanks, formatValue, numberOf, shorten } from "../src/format";
import { checkpointBody, comparisonBody, comparisonMarkdown, escape, guarded, heights, page, sparkline, stacksBody } from "../src/html";
import { Comparison } from "../src/types";

test("ranks are written as ranges", () => {
  assert.equal(formatRanks([3, 0, 2, 2]), "0,2-3");
  assert.equal(formatRanks([]), "");
});

test("values are short, and what JSON cannot hold reads as itself", () => {
  assert.equal(formatValue(0.123456), "0.1235");
  assert.equal(formatValue(12), "12");
  assert.equal(formatValue({ $float: "nan" }), "nan");
  assert.equal(formatValue({ $type: "Net", repr: "Net()" }), "Net()");
  assert.equal(formatValue({ $error: "KeyError" }), "KeyError");
  assert.equal(formatValue(null), "null");
  const tensor = { $type: "torch.Tensor", shape: [2, 3], dtype: "float32", min: -1.5, max: { $float: "inf" }, nan: 2, inf: 0 };
  assert.equal(formatValue(tensor), "Tensor [2, 3]  float32  min -1.5  max inf  2 NaN");
  assert.equal(formatMetrics({ loss: 0.5, accuracy: 0.9, global_step: 7, epoch: 2 }), "global_step 7  epoch 2  loss 0.5  accuracy 0.9");
  assert.equal(formatMetrics({ loss: 0.5, text: "a\nb", c: 1, d: 2, e: 3 }), "loss 0.5  text a…  c 1  d 2  …");
});

test("ages and cuts", () => {
  assert.deepEqual([0, 59, 60, 7300, 200000].map(formatAge), ["0 s ago", "59 s ago", "1 min ago", "2 h ago", "2 d ago"]);
  assert.equal(shorten("abcdef", 4), "abc…");
  assert.equal(shorten("abcd", 4), "abcd");
});

test("numbers are told from what looks like one", () => {
  assert.equal(numberOf(1.5), 1.5);
  assert.ok(Number.isNaN(numberOf({ $float: "nan" })));
  assert.equal(numberOf("1.5"), undefined);
  assert.equal(numberOf(true), undefined);
});

test("a condition on ranks is read back as it was given, beside the user's own", () => {
  for (const ranks of ["1", "0,2-3", "1,4,7-9"])
    for (const own of [undefined, "loss > 3", "a and (b or c)", "x == 'and (y)'"])
      assert.deepEqual(readRanks(withRanks(ranks, own)), { ranks, own });
  assert.equal(withRanks("0,2-3", "x"), "(__rank__ == 0 or 2 <= __rank__ <= 3) and (x)");
  assert.equal(withRanks(" 1 ", undefined), "__rank__ == 1");
  assert.equal(withRanks("", "x"), "x");
  assert.equal(withRanks("", undefined), undefined);
});

test("a condition of the user's own on ranks stays theirs", () => {
  for (const own of ["__rank__ == 1 or x", "__rank__ > 2", "not __rank__"]) assert.deepEqual(readRanks(own), { ranks: "", own });
  assert.deepEqual(readRanks(undefined), { ranks: "", own: undefined });
});

test("ranks are checked as they are typed", () => {
  assert.deepEqual(["0", "0,2-3", " 1 , 2 ", "", "a", "1-", "1,,2", "-1"].map(isRanks), [true, true, true, false, false, false, false, false]);
});

const VALUES: Comparison = { groups: [{ ranks: [1], value: { $float: "nan" } }, { ranks: [0], value: 1 }, { ranks: [2], value: 3 }], errors: [], how: {} };

test("numbers of ranks become bars, in rank order, with what is not finite marked", () => {
  assert.deepEqual(heights([1, NaN, 3, 2]), [0, undefined, 1, 0.5]);
  assert.deepEqual(heights([2, 2]), [0.5, 0.5]);
  assert.deepEqual(heights([NaN]), [undefined]);
  assert.equal(sparkline(VALUES), "▁!█");
  assert.equal(sparkline({ ...VALUES, groups: [{ ranks: [0, 1], value: "a" }] }), "");
  assert.equal((comparisonBody("loss", VALUES).match(/<rect/g) ?? []).length, 3);
});

test("a hover's values are never markup", () => {
  const hostile = { groups: [{ ranks: [0], value: "a `b` ``` [x](command:y)\nz" }], errors: [{ ranks: [1, 2], error: "E: `q`" }], how: {} };
  const lines = comparisonMarkdown(hostile).split("  \n");
  assert.equal(lines[0], "**rank 0** ```` a `b` ``` [x](command:y) z ````");
  assert.equal(lines[1], "**ranks 1-2** `` E: `q` ``");
});

test("what comes from a job is text in every page", () => {
  const evil = `<script>"'&`;
  const safe = "&lt;script&gt;&quot;&#39;&amp;";
  assert.equal(escape(evil), safe);
  const frame = { file: `/a/${evil}.py`, line: 3, function: evil };
  const pages = [
    stacksBody({ groups: [], tree: [{ ranks: [0], waits: evil, frames: [frame], branches: [] }], errors: [{ ranks: [1], error: evil }] }),
    comparisonBody(evil, { groups: [{ ranks: [0], value: evil }], errors: [{ ranks: [1], error: evil }], how: {} }),
    checkpointBody({
      rank: 0,
      checkpoint: {
        snapshot: evil,
        files: [{ path: evil, size: 1 }],
        tensors: [{ file: evil, name: evil, shape: [2], dtype: evil, min: evil, max: 1, mean: null, nan: 1, inf: null }],
      },
    }),
    page(evil, "", "n"),
  ];
  for (const html of pages) {
    assert.ok(html.includes(safe));
    assert.ok(!html.replace(/<script nonce="n">/g, "").includes("<script>"));
  }
});

test("merged stacks show what ranks share once, then where they part; a frame names its place for the click", () => {
  const frame = (line: number, name: string) => ({ file: "/w/train.py", line, function: name });
  const branches = [
    { ranks: [0, 2], frames: [frame(5, "step")], waits: "waits in all_reduce", branches: [] },
    { ranks: [1], frames: [frame(7, "load")], waits: null, branches: [] },
  ];
  const html = stacksBody({ groups: [], tree: [{ ranks: [0, 1, 2], frames: [frame(9, "main")], waits: null, branches }], errors: [] });
  assert.ok(html.includes('data-file="/w/train.py" data-line="5"'));
  const shown = ["ranks 0-2", "main", "ranks 0,2", "step", "waits in all_reduce", "rank 1", "load"].map((each) => html.indexOf(each));
  assert.ok(!shown.includes(-1));
  assert.deepEqual(shown, [...shown].sort((a, b) => a - b));
  assert.equal(html.match(/main/g)!.length, 1);
});

test("Python's page runs no script but ours, and follows the editor's theme", () => {
  const theirs =
    "<!DOCTYPE html><html><head><meta charset=utf-8>" +
    `<meta http-equiv="Content-Security-Policy" content="default-src 'none'">` +
    "<style>@media (prefers-color-scheme: dark) { a { color: red } }</style></head><body>$& &lt;/body&gt; <script>evil()</script></body></html>";
  const html = guarded(theirs, "abc", true);
  assert.equal(html.match(/http-equiv/g)!.length, 1);
  assert.ok(html.includes("script-src 'nonce-abc'"));
  assert.ok(html.includes("@media all"));
  assert.ok(guarded(theirs, "abc", false).includes("@media not all"));
  assert.ok(html.includes("<body>$& ")); // taken as it is, not as a replacement pattern
  assert.equal(html.match(/nonce="abc"/g)!.length, 1);
  assert.ok(html.trimEnd().endsWith("</script></body></html>"));
});
