/** What `python -m raytrain_debug ... --json` prints, as far as it is shown here. */

export interface Place {
  file: string;
  line: number;
  function: string;
}

export interface Report {
  index: number;
  time: number;
  metrics: Record<string, unknown>;
  context: Record<string, unknown>;
  where: Place | null;
  checkpoint: { snapshot: string | null; source: string } | null;
}

export interface RankStatus {
  rank: number;
  state: string;
  pid: number | null;
  port: number | null;
  reports: number | null;
  behind: number;
  last_report: Report | null;
  where: Place | null;
  client: string | null;
  node: string | null;
}

export interface RunStatus {
  run: string;
  state: string;
  attempt: number;
  ranks: RankStatus[];
}

export interface Failure {
  rank: number;
  kind: string;
  exception: string | null;
  signal: string | null;
  exit_code: number | null;
  where: Place | null;
}

export interface RunOverview {
  run: string;
  path: string;
  state: string;
  started: number | null;
  ended: number | null;
  script: string | null;
  argv: string[];
  world_size: number;
  exit_code: number | null;
  first_failure: Failure | null;
}

export interface Tensor {
  file: string;
  name: string;
  shape: number[];
  dtype: string;
  min: unknown;
  max: unknown;
  mean: unknown;
  nan: number | null;
  inf: number | null;
}

export interface PostmortemRank {
  rank: number;
  checkpoint: { snapshot: string | null; files: { path: string; size: number }[]; tensors: Tensor[] } | null;
}

/** A branch of the merged stacks: frames that all its ranks share, then where they part. */
export interface StackNode {
  ranks: number[];
  frames: Place[];
  waits: string | null;
  branches: StackNode[];
}

export interface ErrorGroup {
  ranks: number[];
  error: string;
}

export interface Stacks {
  groups: { ranks: number[]; frames: Place[] }[];
  tree: StackNode[];
  errors: ErrorGroup[];
}

export interface Comparison {
  groups: { ranks: number[]; value: unknown }[];
  errors: ErrorGroup[];
  how: Record<string, string>;
}
