/** Which debug sessions are jobs and which are ranks, stock ones included, and where each rank's session stands. */

import * as vscode from "vscode";
import { TYPE } from "./configuration";

/** A rank's session; it is known by its port, whoever wrote its configuration. `thread` is the one that stands still. */
export interface RankSession {
  session: vscode.DebugSession;
  port: number;
  thread: number | undefined;
}

/** A job's session and, once it is known, the run. */
export interface JobSession {
  session: vscode.DebugSession;
  run: string | undefined;
}

/** How a job of a session ended; `exitCode` null when it lives on. */
export interface JobEnd {
  session: vscode.DebugSession;
  run: string;
  directory: string;
  exitCode: number | null;
  stopped: boolean;
}

export class Sessions {
  private readonly jobs = new Map<string, JobSession>();
  private readonly ranks = new Map<string, RankSession>();
  private readonly changed = new vscode.EventEmitter<void>();
  private readonly started = new vscode.EventEmitter<void>();
  private readonly ended = new vscode.EventEmitter<JobEnd>();
  readonly onDidChange = this.changed.event;
  readonly onDidStartJob = this.started.event;
  readonly onDidEndJob = this.ended.event;

  constructor(subscriptions: vscode.Disposable[]) {
    subscriptions.push(
      vscode.debug.onDidStartDebugSession((session) => this.add(session)),
      vscode.debug.onDidTerminateDebugSession((session) => this.remove(session)),
      vscode.debug.onDidReceiveDebugSessionCustomEvent((event) => this.hear(event)),
      ...[TYPE, "debugpy"].map((type) =>
        vscode.debug.registerDebugAdapterTrackerFactory(type, {
          createDebugAdapterTracker: (session) => ({ onDidSendMessage: (message) => this.follow(session, message) }),
        }),
      ),
    );
  }

  /** The session of the rank that is debugged on `port`. */
  rank(port: number | null): RankSession | undefined {
    return [...this.ranks.values()].find((each) => each.port === port);
  }

  get allRanks(): RankSession[] {
    return [...this.ranks.values()];
  }

  /** The rank whose session has the focus in the user interface. */
  get activeRank(): RankSession | undefined {
    return this.ranks.get(vscode.debug.activeDebugSession?.id ?? "");
  }

  /** The session of the job `run`. */
  job(run: string): JobSession | undefined {
    return [...this.jobs.values()].find((each) => each.run === run);
  }

  /** The run of the session that has the focus in the user interface. */
  get activeRun(): string | undefined {
    const active = vscode.debug.activeDebugSession;
    return active && (this.jobs.get(active.id) ?? this.jobs.get(active.parentSession?.id ?? ""))?.run;
  }

  private add(session: vscode.DebugSession): void {
    const port = session.configuration["connect"]?.port;
    if (port !== undefined) this.ranks.set(session.id, { session, port: Number(port), thread: this.ranks.get(session.id)?.thread });
    else if (session.type === TYPE && !this.jobs.has(session.id)) this.jobs.set(session.id, { session, run: undefined });
    this.changed.fire();
  }

  private remove(session: vscode.DebugSession): void {
    const wasJob = this.jobs.delete(session.id);
    this.ranks.delete(session.id);
    // The ranks of a job that was only attached to live on: their sessions end with the job's.
    if (wasJob)
      for (const each of this.ranks.values())
        if (each.session.parentSession?.id === session.id) void vscode.debug.stopDebugging(each.session);
    this.changed.fire();
  }

  private hear({ session, event, body }: vscode.DebugSessionCustomEvent): void {
    if (event === "raytrainRun") {
      this.jobs.set(session.id, { session, run: body.run });
      this.started.fire();
      this.changed.fire();
    } else if (event === "raytrainEnded") this.ended.fire({ session, ...body });
  }

  private follow(session: vscode.DebugSession, message: { type: string; event?: string; body?: { threadId?: number } }): void {
    if (message.type !== "event" || (message.event !== "stopped" && message.event !== "continued")) return;
    const port = session.configuration["connect"]?.port;
    if (port === undefined) return;
    const thread = message.event === "stopped" ? message.body?.threadId : undefined;
    this.ranks.set(session.id, { session, port: Number(port), thread });
    this.changed.fire();
  }
}
