/** Watches single directories. VS Code's own watcher misses what is made inside a directory that is new itself. */

import * as fs from "fs";
import * as path from "path";

export class Watch {
  private readonly watchers = new Map<string, fs.FSWatcher>();

  /** `changed(directory)` is called when an entry of a watched directory is made, replaced, written to or removed. */
  constructor(private readonly changed: (directory: string) => void) {}

  /** Watch these directories and no others. */
  set(directories: Iterable<string>): void {
    const wanted = new Set(directories);
    for (const [directory, watcher] of this.watchers)
      if (!wanted.has(directory)) {
        watcher.close();
        this.watchers.delete(directory);
      }
    for (const directory of wanted) if (!this.watchers.has(directory)) this.add(directory);
  }

  private add(directory: string): void {
    try {
      const watcher = fs.watch(directory, { persistent: false }, () => this.changed(directory));
      watcher.on("error", () => this.watchers.delete(directory));
      this.watchers.set(directory, watcher);
    } catch {
      // It has gone meanwhile, or the system has no watches left: the slow look at live runs still sees the changes.
    }
  }
}

/** `directory`, or the nearest directory above it that there is. */
export function nearestDirectory(directory: string): string {
  while (!fs.existsSync(directory) && path.dirname(directory) !== directory) directory = path.dirname(directory);
  return directory;
}
