/** Webview panels: one of a kind, reused, showing pages of html.ts; clicks on places open the source. */

import { randomBytes } from "crypto";
import * as vscode from "vscode";
import { text } from "./text";

/** A page, given the nonce of its script and whether the editor is dark. */
export type Page = (nonce: string, dark: boolean) => string;

export class Panels {
  private readonly panels = new Map<string, vscode.WebviewPanel>();
  private readonly contents = new Map<string, { html: Page; refresh: () => void }>();

  constructor(subscriptions: vscode.Disposable[]) {
    subscriptions.push(vscode.window.onDidChangeActiveColorTheme(() => [...this.panels.keys()].forEach((kind) => this.draw(kind))));
  }

  /** Show a page in the panel `kind`; `refresh` is what its button does. */
  show(kind: string, title: string, html: Page, refresh: () => void = () => {}): void {
    const panel = this.panels.get(kind) ?? this.open(kind);
    panel.title = title;
    this.contents.set(kind, { html, refresh });
    this.draw(kind);
    panel.reveal(undefined, true);
  }

  private draw(kind: string): void {
    const { Dark, HighContrast } = vscode.ColorThemeKind;
    const dark = [Dark, HighContrast].includes(vscode.window.activeColorTheme.kind);
    this.panels.get(kind)!.webview.html = this.contents.get(kind)!.html(randomBytes(16).toString("hex"), dark);
  }

  private open(kind: string): vscode.WebviewPanel {
    const column = { viewColumn: vscode.ViewColumn.Beside, preserveFocus: true };
    const panel = vscode.window.createWebviewPanel(`raytrain.${kind}`, "", column, { enableScripts: true, localResourceRoots: [] });
    panel.webview.onDidReceiveMessage((message) => {
      if (message.command === "refresh") this.contents.get(kind)?.refresh();
      else if (typeof message.file === "string") void openSource(message.file, Number(message.line));
    });
    panel.onDidDispose(() => {
      this.panels.delete(kind);
      this.contents.delete(kind);
    });
    this.panels.set(kind, panel);
    return panel;
  }
}

/** A path on the machine that we run on. In a remote window VS Code makes URIs of the paths that a debug session answers. */
function localPath(file: string): string {
  return file.startsWith("vscode-remote:") ? vscode.Uri.parse(file).path : file;
}

/** Show a line of a file, in the first editor column. */
export async function openSource(file: string, line: number): Promise<void> {
  try {
    const document = await vscode.workspace.openTextDocument(vscode.Uri.file(localPath(file)));
    const position = new vscode.Position(Math.max(0, (line || 1) - 1), 0);
    const editor = await vscode.window.showTextDocument(document, { viewColumn: vscode.ViewColumn.One, selection: new vscode.Range(position, position) });
    editor.revealRange(new vscode.Range(position, position), vscode.TextEditorRevealType.InCenterIfOutsideViewport);
  } catch {
    void vscode.window.showWarningMessage(text.sourceMissing(file));
  }
}
