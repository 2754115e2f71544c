/** The runs of all folders as raytrain_debug tells them, looked at again when the run directory or a session changes. */

import * as path from "path";
import * as vscode from "vscode";
import { CommandFailed, runJson } from "./python";
import { Sessions } from "./sessions";
import { RankStatus, RunOverview, RunStatus } from "./types";
import { nearestDirectory, Watch } from "./watch";

const AT_MOST_EVERY = 1000; // ms
const WATCHED_RUNS = 20;
const SLOWLY = 5000; // ms, for what leaves no trace in the run directory: a rank that another client pauses

export interface Run {
  folder: vscode.WorkspaceFolder;
  overview: RunOverview;
  status: RunStatus | undefined;
}

export interface Rank {
  run: Run;
  status: RankStatus;
}

export class Runs {
  private runs: Run[] = [];
  private failure: string | undefined;
  private visible = false;
  private readonly listing = new Throttle(() => this.list());
  private readonly asking = new Throttle(() => this.ask());
  private rankDirectories = new Set<string>();
  private readonly watch = new Watch((directory) => (this.rankDirectories.has(directory) ? this.asking : this.listing).soon());
  private timer: NodeJS.Timeout | undefined;
  private readonly changed = new vscode.EventEmitter<void>();
  readonly onDidChange = this.changed.event;
  private markListed!: () => void;
  /** Done once the runs have been looked at for the first time. */
  readonly listed = new Promise<void>((done) => (this.markListed = done));

  constructor(subscriptions: vscode.Disposable[], sessions: Sessions) {
    subscriptions.push(
      sessions.onDidChange(() => this.asking.soon()),
      vscode.workspace.onDidChangeWorkspaceFolders(() => this.listing.soon()),
      sessions.onDidStartJob(() => this.listing.soon()),
      sessions.onDidEndJob(() => this.listing.soon()),
      { dispose: () => (clearInterval(this.timer), this.watch.set([])) },
    );
  }

  get all(): readonly Run[] {
    return this.runs;
  }

  /** Why the runs of the last look could not be listed. */
  get problem(): string | undefined {
    return this.failure;
  }

  get live(): Run[] {
    return this.runs.filter(isLive);
  }

  find(id: string | undefined): Run | undefined {
    return this.runs.find((run) => run.overview.run === id);
  }

  /** Follow the runs from now on, or no longer. */
  show(visible: boolean): void {
    this.visible = visible;
    clearInterval(this.timer);
    this.watchDirectories();
    if (!visible) return;
    this.listing.soon();
    this.timer = setInterval(() => this.live.length && this.asking.soon(), SLOWLY);
  }

  /** Look at everything now. */
  async refresh(): Promise<void> {
    await this.list();
  }

  /** The ranks of a run, asked for when they are not known. */
  async ranks(run: Run): Promise<Rank[]> {
    if (!run.status) await this.askOne(run);
    return (run.status?.ranks ?? []).map((status) => ({ run, status }));
  }

  /** The run roots, for new runs; each run that has not ended, for its run.json; its ranks, for their reports. */
  private watchDirectories(): void {
    const roots = (vscode.workspace.workspaceFolders ?? []).map((folder) => nearestDirectory(path.resolve(folder.uri.fsPath, runRoot(folder))));
    const open = this.visible ? this.runs.filter(({ overview }) => overview.ended === null).slice(0, WATCHED_RUNS) : [];
    this.rankDirectories = new Set(
      open.flatMap(({ overview, status }) => (status?.ranks ?? []).map(({ rank }) => path.join(overview.path, "ranks", `${rank}`))),
    );
    this.watch.set(this.visible ? [...roots, ...open.map(({ overview }) => overview.path), ...this.rankDirectories] : []);
  }

  private async list(): Promise<void> {
    try {
      this.runs = await this.readAll();
    } finally {
      this.markListed();
    }
    void vscode.commands.executeCommand("setContext", "raytrain.live", this.live.length > 0);
    await this.ask();
  }

  private async readAll(): Promise<Run[]> {
    const found: Run[] = [];
    this.failure = undefined;
    for (const folder of vscode.workspace.workspaceFolders ?? []) {
      try {
        const { runs } = await runJson<{ runs: RunOverview[] }>(folder.uri, ["runs", "--run-root", runRoot(folder)]);
        for (const overview of runs) {
          const known = this.runs.find((run) => run.overview.path === overview.path);
          const unchanged = known && !isLive(known) && known.overview.state === overview.state;
          found.push({ folder, overview, status: unchanged || overview.state === "running" ? known?.status : undefined });
        }
      } catch (error) {
        if (!(error instanceof CommandFailed)) throw error;
        this.failure = error.message;
      }
    }
    return found.sort((a, b) => (b.overview.started ?? 0) - (a.overview.started ?? 0));
  }

  private async ask(): Promise<void> {
    for (const run of this.live) await this.askOne(run);
    // A run whose ranks have all ended is about to end, or has.
    if (this.live.some((run) => run.status && run.status.state !== "running")) this.listing.soon();
    this.watchDirectories();
    this.changed.fire();
  }

  private async askOne(run: Run): Promise<void> {
    try {
      run.status = await runJson<RunStatus>(run.folder.uri, ["status", run.overview.path]);
    } catch (error) {
      if (!(error instanceof CommandFailed)) throw error;
    }
  }
}

export function isLive(run: Run): boolean {
  return run.overview.state === "running";
}

export function runRoot(folder: vscode.WorkspaceFolder): string {
  return vscode.workspace.getConfiguration("raytrain", folder.uri).get<string>("runRoot") || ".raytrain_debug";
}

/** Does `work` soon after it was asked for, never twice at a time, and at most once in a while. */
class Throttle {
  private last = 0;
  private timer: NodeJS.Timeout | undefined;
  private busy = false;
  private again = false;

  constructor(private readonly work: () => Promise<void>) {}

  soon(): void {
    if (this.busy) this.again = true;
    else this.timer ??= setTimeout(() => void this.run(), Math.max(50, this.last + AT_MOST_EVERY - Date.now()));
  }

  private async run(): Promise<void> {
    this.timer = undefined;
    this.busy = true;
    this.again = false;
    try {
      await this.work();
    } finally {
      this.busy = false;
      this.last = Date.now();
      if (this.again) this.soon();
    }
  }
}
