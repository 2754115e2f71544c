/** What the view's rows can be told to do. Without a row, a command takes what is being debugged, or asks. */

import { mkdtemp, readFile, rm } from "fs/promises";
import { tmpdir } from "os";
import * as path from "path";
import * as vscode from "vscode";
import { TYPE } from "./configuration";
import { checkpointBody, guarded, page, stacksBody } from "./html";
import { openSource, Panels } from "./panels";
import { complain, CommandFailed, run as runCommand, runJson } from "./python";
import { Rank, Run, Runs } from "./runs";
import { RankSession, Sessions } from "./sessions";
import { text } from "./text";
import { PostmortemRank, Stacks } from "./types";
import { isRank, Node } from "./view";

export const DOCUMENT = "raytrain";

export class Actions implements vscode.TextDocumentContentProvider {
  private readonly documents = new Map<string, string>();

  constructor(private readonly runs: Runs, private readonly sessions: Sessions, private readonly panels: Panels) {}

  /** The commands by name. */
  get commands(): Record<string, (node?: Node) => Promise<unknown>> {
    return {
      "raytrain.refresh": () => this.runs.refresh(),
      "raytrain.attach": (node) => this.attach(node),
      "raytrain.detach": (node) => this.forOne(node, ({ session }) => vscode.debug.stopDebugging(session)),
      "raytrain.stop": (node) => this.stop(node),
      "raytrain.pause": (node) => this.forOne(node, pause),
      "raytrain.continue": (node) => this.forOne(node, (each) => move(each, "continue")),
      "raytrain.pauseAll": (node) => this.forAll(node, pause),
      "raytrain.continueAll": (node) => this.forAll(node, (each) => move(each, "continue"), true),
      "raytrain.stepAll": (node) => this.forAll(node, (each) => move(each, "next"), true),
      "raytrain.goTo": (node) => this.withRank(node, (rank) => this.goTo(rank)),
      "raytrain.openLastReport": (node) => this.withRank(node, (rank) => this.openLastReport(rank)),
      "raytrain.openLastCheckpoint": (node) => this.withRank(node, (rank) => this.openLastCheckpoint(rank)),
      "raytrain.stacks": (node) => this.withRun(node, true, (run) => this.stacks(run)),
      "raytrain.report": (node) => this.withRun(node, false, (run) => this.report(run.folder.uri, run.overview.path, run.overview.run)),
      "raytrain.debugPostmortem": (node) => this.withRun(node, false, (run) => this.debugPostmortem(run)),
    };
  }

  provideTextDocumentContent(uri: vscode.Uri): string {
    return this.documents.get(uri.toString()) ?? "";
  }

  /** The post-mortem report of the run in `directory`. */
  async report(folder: vscode.Uri, directory: string, run: string): Promise<void> {
    const temporary = await mkdtemp(path.join(tmpdir(), "raytrain-"));
    try {
      const file = path.join(temporary, "report.html");
      await progress(text.writingReport, () => runCommand(folder, ["postmortem", directory, "--html", file]));
      const html = await readFile(file, "utf8");
      this.panels.show("report", text.reportTitle(run), (nonce, dark) => guarded(html, nonce, dark));
    } finally {
      await rm(temporary, { recursive: true, force: true });
    }
  }

  private async attach(node?: Node): Promise<void> {
    await this.withRun(node && isRank(node) ? node.run : node, true, async (run) => {
      const ranks = (await this.runs.ranks(run)).filter(({ status }) => status.client === null && status.port !== null);
      const chosen = node && isRank(node) ? ranks.filter(({ status }) => status.rank === node.status.rank) : ranks;
      const job = this.sessions.job(run.overview.run);
      if (job) for (const { status } of chosen) await job.session.customRequest("raytrainOpen", { rank: status.rank });
      else {
        const names = node && isRank(node) ? String(node.status.rank) : "all";
        const configuration = { name: text.attachName, type: TYPE, request: "attach", run: run.overview.run, ranks: names, cwd: run.folder.uri.fsPath };
        await vscode.debug.startDebugging(run.folder, configuration);
      }
    });
  }

  private async stop(node?: Node): Promise<void> {
    await this.withRun(node, true, async (run) => {
      const job = this.sessions.job(run.overview.run);
      if (job) await vscode.debug.stopDebugging(job.session);
    });
  }

  private async goTo({ run, status }: Rank): Promise<void> {
    const ours = this.sessions.rank(status.port);
    if (ours?.thread !== undefined) {
      const { stackFrames } = await ours.session.customRequest("stackTrace", { threadId: ours.thread });
      const frame = stackFrames.find((each: { source?: { path?: string }; presentationHint?: string }) => each.source?.path && each.presentationHint !== "subtle");
      if (frame) return openSource(frame.source.path, frame.line);
    }
    const failure = run.overview.first_failure;
    const where = status.where ?? (failure?.rank === status.rank ? failure.where : null);
    if (where) return openSource(where.file, where.line);
    const { groups } = await runJson<Stacks>(run.folder.uri, ["stacks", "--run", run.overview.path, "--ranks", `${status.rank}`]);
    const frame = groups[0]?.frames.at(-1);
    if (frame) await openSource(frame.file, frame.line);
    else void vscode.window.showInformationMessage(text.unknownPlace(status.rank));
  }

  private async openLastReport({ run, status }: Rank): Promise<void> {
    if (!status.last_report) return void vscode.window.showInformationMessage(text.noReport(status.rank));
    const name = `rank-${status.rank}-report-${status.last_report.index}.json`;
    await this.openDocument(`${run.overview.run}/${name}`, JSON.stringify(status.last_report, null, 2));
  }

  private async openLastCheckpoint({ run, status }: Rank): Promise<void> {
    const args = ["postmortem", run.overview.path, "--rank", `${status.rank}`];
    const { ranks } = await runJson<{ ranks: PostmortemRank[] }>(run.folder.uri, args);
    const found = ranks.find((each) => each.rank === status.rank);
    if (!found?.checkpoint) return void vscode.window.showInformationMessage(text.noCheckpoint(status.rank));
    this.panels.show("checkpoint", text.checkpointTitle(status.rank), (nonce) => page(text.checkpointTitle(status.rank), checkpointBody(found), nonce));
  }

  private async stacks(run: Run): Promise<void> {
    const stacks = await progress(text.gatheringStacks, () => runJson<Stacks>(run.folder.uri, ["stacks", "--run", run.overview.path]));
    const again = () => void guard(() => this.stacks(run));
    this.panels.show("stacks", text.stacksTitle, (nonce) => page(text.stacksTitle, stacksBody(stacks), nonce), again);
  }

  private async debugPostmortem(run: Run): Promise<void> {
    const configuration = { name: text.reportTitle(run.overview.run), type: TYPE, request: "postmortem", run: run.overview.path };
    await vscode.debug.startDebugging(run.folder, configuration);
  }

  private async openDocument(name: string, content: string): Promise<void> {
    const uri = vscode.Uri.parse(`${DOCUMENT}:/${name}`);
    this.documents.set(uri.toString(), content);
    await vscode.window.showTextDocument(await vscode.workspace.openTextDocument(uri), { preview: true });
  }

  /** Act on the rank of the row, the one that has the debugger's focus, or the one that is chosen. */
  private async forOne(node: Node | undefined, action: (session: RankSession) => Thenable<unknown>): Promise<void> {
    if (node && !isRank(node)) return this.forAll(node, action);
    const found = node ? this.sessions.rank(node.status.port) : (this.sessions.activeRank ?? (await pickSession(this.sessions.allRanks)));
    if (found) await action(found);
    else if (node) void vscode.window.showInformationMessage(text.notAttached(node.status.rank));
    else if (!this.sessions.allRanks.length) void vscode.window.showInformationMessage(text.noneAttached);
  }

  /** Act on all ranks of the row's run, or on all that are debugged; `standing` on those that stand still. */
  private async forAll(node: Node | undefined, action: (session: RankSession) => Thenable<unknown>, standing = false): Promise<void> {
    const run = node && (isRank(node) ? node.run : node);
    const ports = (run?.status?.ranks ?? []).map((each) => each.port);
    const attached = this.sessions.allRanks.filter((each) => !run || ports.includes(each.port));
    const sessions = standing ? attached.filter((each) => each.thread !== undefined) : attached;
    if (sessions.length === 0) return void vscode.window.showInformationMessage(attached.length ? text.noneStands : text.noneAttached);
    await Promise.all(sessions.map(action));
  }

  /** The run of a row, the one that is debugged, or the one that is chosen. */
  async withRun(node: Node | undefined, live: boolean, action: (run: Run) => Promise<void>): Promise<void> {
    let run = node && (isRank(node) ? node.run : node);
    if (!run) {
      await this.runs.refresh();
      const runs = live ? this.runs.live : this.runs.all;
      run = this.runs.find(live ? this.sessions.activeRun : undefined) ?? (await pickRun(runs, live));
    }
    if (run) await action(run);
  }

  private async withRank(node: Node | undefined, action: (rank: Rank) => Promise<void>): Promise<void> {
    if (node && isRank(node)) return action(node);
    await this.withRun(node, false, async (run) => {
      const items = (await this.runs.ranks(run)).map((rank) => ({ label: text.rank(rank.status.rank), description: rank.status.state, rank }));
      const chosen = items.length === 1 ? items[0] : await vscode.window.showQuickPick(items, { placeHolder: text.pickRank });
      if (chosen) await action(chosen.rank);
    });
  }
}

/** Do `work`, and show what a command of ours complains about. */
export async function guard(work: () => Promise<unknown>): Promise<void> {
  try {
    await work();
  } catch (error) {
    await complain(error);
    if (!(error instanceof CommandFailed)) console.error(error);
  }
}

export function progress<T>(title: string, work: () => Promise<T>): Thenable<T> {
  return vscode.window.withProgress({ location: vscode.ProgressLocation.Window, title }, work);
}

async function pickRun(runs: readonly Run[], live: boolean): Promise<Run | undefined> {
  if (runs.length === 0) return void vscode.window.showInformationMessage(live ? text.noLiveRun : text.noRun);
  if (runs.length === 1) return runs[0];
  const items = runs.map((run) => ({ label: run.overview.argv.join(" "), description: run.overview.state, detail: run.overview.run, run }));
  return (await vscode.window.showQuickPick(items, { placeHolder: text.pickRun }))?.run;
}

async function pickSession(ranks: RankSession[]): Promise<RankSession | undefined> {
  const items = ranks.map((rank) => ({ label: rank.session.name, rank }));
  return items.length > 1 ? (await vscode.window.showQuickPick(items, { placeHolder: text.pickRank }))?.rank : items[0]?.rank;
}

async function pause({ session, thread }: RankSession): Promise<void> {
  if (thread !== undefined) return;
  const { threads } = await session.customRequest("threads");
  const training = threads.find((each: { name: string }) => each.name === "MainThread") ?? threads[0];
  if (training) await session.customRequest("pause", { threadId: training.id });
}

async function move({ session, thread }: RankSession, command: "continue" | "next"): Promise<void> {
  if (thread !== undefined) await session.customRequest(command, { threadId: thread });
}
