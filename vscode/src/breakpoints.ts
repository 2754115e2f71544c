/** Breakpoints on some ranks only: the command that asks for the ranks, and the label that shows them in the editor. */

import * as vscode from "vscode";
import { isRanks, readRanks, withRanks } from "./conditions";
import { text } from "./text";

export class RankBreakpoints {
  private readonly decoration = vscode.window.createTextEditorDecorationType({
    after: { margin: "0 0 0 2em", color: new vscode.ThemeColor("editorCodeLens.foreground"), fontStyle: "italic" },
  });

  constructor(subscriptions: vscode.Disposable[]) {
    subscriptions.push(
      this.decoration,
      vscode.debug.onDidChangeBreakpoints(() => this.label()),
      vscode.window.onDidChangeVisibleTextEditors(() => this.label()),
    );
    this.label();
  }

  /** Ask on which ranks the line's breakpoint stops. `at` comes from the context menu of a line number. */
  async command(at?: { uri: vscode.Uri; lineNumber: number }): Promise<void> {
    const editor = vscode.window.activeTextEditor;
    const uri = at?.uri ?? editor?.document.uri;
    const line = at ? at.lineNumber - 1 : editor?.selection.active.line;
    if (!uri || line === undefined) return;
    const before = sourceBreakpoints().find((each) => each.location.uri.toString() === uri.toString() && each.location.range.start.line === line);
    const { ranks, own } = readRanks(before?.condition);
    const validateInput = (value: string) => (value.trim() === "" || isRanks(value) ? undefined : text.breakpointRanks);
    const answer = await vscode.window.showInputBox({ prompt: text.breakpointPrompt, value: ranks, validateInput });
    if (answer === undefined) return;
    const location = before?.location ?? new vscode.Location(uri, new vscode.Position(line, 0));
    // A breakpoint cannot be changed, only replaced.
    if (before) vscode.debug.removeBreakpoints([before]);
    vscode.debug.addBreakpoints([
      new vscode.SourceBreakpoint(location, before?.enabled ?? true, withRanks(answer, own), before?.hitCondition, before?.logMessage),
    ]);
  }

  private label(): void {
    for (const editor of vscode.window.visibleTextEditors) {
      const here = sourceBreakpoints().filter((each) => each.location.uri.toString() === editor.document.uri.toString());
      const labels = here.flatMap((each) => {
        const { ranks } = readRanks(each.condition);
        const line = each.location.range.start.line;
        if (!ranks || line >= editor.document.lineCount) return [];
        const end = editor.document.lineAt(line).range.end;
        return [{ range: new vscode.Range(end, end), renderOptions: { after: { contentText: text.breakpointLabel(ranks) } } }];
      });
      editor.setDecorations(this.decoration, labels);
    }
  }
}

function sourceBreakpoints(): vscode.SourceBreakpoint[] {
  return vscode.debug.breakpoints.filter((each) => each instanceof vscode.SourceBreakpoint);
}
