/** The view "Ray Train": a row a run, the newest first, and below it a row a rank. */

import * as path from "path";
import * as vscode from "vscode";
import { formatAge, formatMetrics, shorten } from "./format";
import { isLive, Rank, Run, Runs } from "./runs";
import { Sessions } from "./sessions";
import { text } from "./text";
import { Failure } from "./types";

const ICONS: Record<string, [icon: string, color?: string]> = {
  starting: ["loading~spin"],
  waiting: ["watch", "charts.yellow"],
  dormant: ["play-circle", "charts.green"],
  attached: ["debug-alt", "charts.blue"],
  paused: ["debug-pause", "charts.yellow"],
  finished: ["pass", "charts.green"],
  running: ["play-circle", "charts.green"],
  failed: ["error", "charts.red"],
  lost: ["question", "charts.red"],
  stopped: ["debug-stop"],
};

export type Node = Run | Rank;

export function isRank(node: Node): node is Rank {
  return "run" in node;
}

export class RunsView implements vscode.TreeDataProvider<Node> {
  private readonly changed = new vscode.EventEmitter<void>();
  readonly onDidChangeTreeData = this.changed.event;
  private readonly tree: vscode.TreeView<Node>;

  constructor(subscriptions: vscode.Disposable[], private readonly runs: Runs, private readonly sessions: Sessions) {
    this.tree = vscode.window.createTreeView("raytrain.runs", { treeDataProvider: this, showCollapseAll: true });
    subscriptions.push(
      this.tree,
      this.tree.onDidChangeVisibility(({ visible }) => runs.show(visible)),
      runs.onDidChange(() => this.redraw()),
      sessions.onDidChange(() => this.redraw()),
    );
    runs.show(this.tree.visible);
  }

  async getChildren(node?: Node): Promise<Node[]> {
    if (!node) {
      await this.runs.listed;
      return [...this.runs.all];
    }
    return isRank(node) ? [] : this.runs.ranks(node);
  }

  getTreeItem(node: Node): vscode.TreeItem {
    return isRank(node) ? this.rankItem(node) : this.runItem(node);
  }

  private redraw(): void {
    this.tree.message = this.runs.problem ?? "";
    void vscode.commands.executeCommand("setContext", "raytrain.attached", this.sessions.allRanks.length > 0);
    this.changed.fire();
  }

  private runItem(run: Run): vscode.TreeItem {
    const { overview } = run;
    const live = isLive(run);
    const item = new vscode.TreeItem(overview.script ? path.basename(overview.script) : overview.run);
    item.id = overview.path;
    item.collapsibleState = live ? vscode.TreeItemCollapsibleState.Expanded : vscode.TreeItemCollapsibleState.Collapsed;
    const failure = overview.first_failure;
    const folders = vscode.workspace.workspaceFolders?.length ?? 0;
    const age = overview.started === null ? [] : [formatAge(Date.now() / 1000 - overview.started)];
    item.description = [
      overview.state,
      ...(failure ? [text.failed(failure.rank, shorten(reasonOf(failure), 60))] : []),
      ...age,
      ...(folders > 1 ? [run.folder.name] : []),
    ].join(" · ");
    item.tooltip = [overview.run, overview.argv.join(" "), ...(failure ? [text.failed(failure.rank, reasonOf(failure))] : [])].join("\n");
    item.accessibilityInformation = { label: `${item.label} ${item.description}` };
    item.iconPath = icon(overview.state);
    const job = live ? this.sessions.job(overview.run) : undefined;
    const free = live && run.status?.ranks.some((each) => each.client === null && each.port !== null);
    item.contextValue = [
      "run",
      live ? "live" : "over",
      ...(free ? ["free"] : []),
      ...(job && job.session.configuration.request === "launch" ? ["stoppable"] : []),
      ...(run.status?.ranks.some((each) => this.sessions.rank(each.port)) && live ? ["group"] : []),
    ].join(" ");
    return item;
  }

  private rankItem({ run, status }: Rank): vscode.TreeItem {
    const item = new vscode.TreeItem(text.rank(status.rank));
    item.id = `${run.overview.path}#${status.rank}`;
    const ours = isLive(run) ? this.sessions.rank(status.port) : undefined;
    const state = ours?.thread !== undefined ? "paused" : status.state;
    const ended = state === "finished" || state === "failed" || state === "stopped" || state === "lost";
    const first = run.overview.first_failure?.rank === status.rank ? run.overview.first_failure : undefined;
    const { behind, last_report: report } = status;
    const hasPlace = (!ended && isLive(run)) || !!first?.where;
    const shown = state === "failed" && first ? text.failedFirst(shorten(reasonOf(first), 60)) : state;
    item.description = [
      status.where ? `${shown} ${text.at(path.basename(status.where.file), status.where.line)}` : shown,
      ...(status.node ? [text.onNode(status.node)] : []),
      ...(status.client && !ours ? [text.debuggedBy(status.client)] : []),
      ...(status.reports ? [text.reports(status.reports)] : []),
      ...(behind > 0 ? [text.behind(behind)] : []),
      ...(report ? [formatMetrics(report.metrics)] : []),
    ].join(" · ");
    item.tooltip = [item.description, ...(report ? [formatAge(Date.now() / 1000 - report.time)] : [])].join("\n");
    item.iconPath = behind > 0 && !ended ? new vscode.ThemeIcon("warning", new vscode.ThemeColor("charts.orange")) : icon(state);
    item.contextValue = [
      "rank",
      ...(ours ? ["ours", ours.thread !== undefined ? "held" : "going"] : []),
      ...(!ended && !status.client && status.port !== null && isLive(run) ? ["free"] : []),
      ...(hasPlace ? ["placed"] : []),
      ...(report ? ["reported"] : []),
    ].join(" ");
    item.accessibilityInformation = { label: `${item.label} ${item.description}` };
    if (hasPlace) item.command = { command: "raytrain.goTo", title: text.goTo, arguments: [{ run, status }] };
    return item;
  }
}

function reasonOf(failure: Failure): string {
  return failure.exception ?? failure.signal ?? text.exitCode(failure.exit_code);
}

function icon(state: string): vscode.ThemeIcon {
  const [name, color] = ICONS[state] ?? ["circle-outline"];
  return new vscode.ThemeIcon(name, color ? new vscode.ThemeColor(color) : undefined);
}
