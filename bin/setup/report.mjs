// What set-up tells its user: one line a step; on a terminal the line lives until the step ends.
import { clearLine, cursorTo } from 'node:readline';

const TICK_MS = 120;

/** A failure that the user can act on: its message is all that is printed. */
export class SetupError extends Error {
  name = 'SetupError';
}

export function createReport(stream = process.stderr) {
  const live = Boolean(stream.isTTY) && !process.env.CI;
  const write = (text) => {
    if (live) {
      cursorTo(stream, 0);
      clearLine(stream, 0);
    }
    stream.write(text);
  };

  return {
    live,
    line: (text) => write(`${text}\n`),
    /**
     * Runs one step; `work` gets `note(text)`, `progress(done, total)` (bytes) and
     * `share(0 … 1, what)`, and returns how it went.
     */
    async step(name, work) {
      const begun = Date.now();
      let detail = '';
      const paint = () => write(`  ${name} … ${detail || `${seconds(begun)} s`}`.slice(0, (stream.columns ?? 80) - 1));
      const timer = live ? setInterval(paint, TICK_MS) : undefined;
      if (!live) write(`  ${name} …\n`);
      try {
        const outcome = await work({
          note: (text) => write(`  ${name}: ${text}\n`),
          progress: (done, total) => {
            detail = `${bar(done / total)} ${megabytes(done)} / ${megabytes(total)} MB`;
          },
          share: (fraction, what) => {
            detail = `${bar(fraction)} ${what}`;
          },
        });
        write(`  ${name}: ${outcome ?? 'done'} (${seconds(begun)} s)\n`);
      } finally {
        clearInterval(timer);
      }
    },
  };
}

const seconds = (begun) => ((Date.now() - begun) / 1000).toFixed(1);

function bar(share) {
  const filled = Math.round(Math.min(1, share || 0) * 24);
  return `[${'#'.repeat(filled)}${' '.repeat(24 - filled)}]`;
}

const megabytes = (bytes) => (bytes / 1e6).toFixed(1);
