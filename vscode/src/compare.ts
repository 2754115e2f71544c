/** "Compare across ranks": an expression's value in every rank, in a panel and as a hover over the selection. */

import * as vscode from "vscode";
import { Actions, guard, progress } from "./actions";
import { comparisonBody, comparisonMarkdown, page } from "./html";
import { Panels } from "./panels";
import { CommandFailed, runJson } from "./python";
import { Run, Runs } from "./runs";
import { Sessions } from "./sessions";
import { text } from "./text";
import { Comparison } from "./types";

const HOVER_KEEPS = 2000; // ms, so that a hand's tremble does not ask again

export class Compare implements vscode.HoverProvider {
  private last: { expression: string; run: string; time: number; comparison: Comparison } | undefined;

  constructor(
    private readonly runs: Runs,
    private readonly sessions: Sessions,
    private readonly actions: Actions,
    private readonly panels: Panels,
  ) {}

  /** Compare the selection, or the word at the cursor, or what the person types. */
  async command(): Promise<void> {
    const editor = vscode.window.activeTextEditor;
    const selected = editor && (selection(editor) ?? word(editor));
    const expression = selected || (await vscode.window.showInputBox({ prompt: text.compareAsk }));
    if (!expression) return void vscode.window.showInformationMessage(text.nothingSelected);
    await this.actions.withRun(undefined, true, (run) => this.show(run, expression));
    if (editor && selection(editor)) await vscode.commands.executeCommand("editor.action.showHover");
  }

  /** Over a selected expression, while a job runs: its value in every rank. */
  async provideHover(document: vscode.TextDocument, position: vscode.Position): Promise<vscode.Hover | undefined> {
    const editor = vscode.window.activeTextEditor;
    if (editor?.document !== document || !editor.selection.contains(position)) return undefined;
    const expression = selection(editor);
    const run = this.runs.find(this.sessions.activeRun) ?? this.runs.live[0];
    if (!expression || !run) return undefined;
    try {
      return new vscode.Hover(comparisonMarkdown(await this.ask(run, expression)), editor.selection);
    } catch (error) {
      if (error instanceof CommandFailed) return undefined; // not an expression, or the job has just ended
      throw error;
    }
  }

  private async show(run: Run, expression: string): Promise<void> {
    const comparison = await progress(text.comparing(expression), () => this.ask(run, expression, true));
    const again = () => void guard(() => this.show(run, expression));
    this.panels.show("compare", text.compareTitle, (nonce) => page(text.compareTitle, comparisonBody(expression, comparison), nonce), again);
  }

  private async ask(run: Run, expression: string, anew = false): Promise<Comparison> {
    const { last } = this;
    if (!anew && last?.expression === expression && last.run === run.overview.run && Date.now() - last.time < HOVER_KEEPS) return last.comparison;
    const comparison = await runJson<Comparison>(run.folder.uri, ["print", "--run", run.overview.path, "--", expression]);
    this.last = { expression, run: run.overview.run, time: Date.now(), comparison };
    return comparison;
  }
}

function selection({ document, selection }: vscode.TextEditor): string | undefined {
  return selection.isSingleLine ? document.getText(selection).trim() || undefined : undefined;
}

function word({ document, selection }: vscode.TextEditor): string | undefined {
  const range = document.getWordRangeAtPosition(selection.active, /[A-Za-z_][\w.]*/);
  return range && document.getText(range);
}
