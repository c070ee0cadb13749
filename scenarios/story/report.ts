/** One HTML file of what was told: no script, no font and no picture from elsewhere. */
import type { StepRecord, StreamRecord, Verdict } from './run.js';

const escaped = (text: string) => text.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);

const width = 960;
const left = 190;
const rowPx = 18;
const streamPx = 6;
/** More would be a file that no browser likes. */
const maxStreams = 200;
const maxTicks = 400;

const css = `:root{color-scheme:light dark;--ink:#1b1f24;--paper:#fff;--line:#d0d7de;--good:#1a7f37;--bad:#cf222e;--dim:#656d76;--step:#0969da}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--paper:#0d1117;--line:#30363d;--good:#3fb950;--bad:#f85149;--dim:#8d96a0;--step:#58a6ff}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1000px;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.25rem .75rem .25rem 0;border-bottom:1px solid var(--line);vertical-align:top}
.passed{color:var(--good)}.failed{color:var(--bad)}.refused,small{color:var(--dim)}svg{width:100%;height:auto}
text{font:11px system-ui,sans-serif;fill:var(--ink)}.axis{stroke:var(--line)}.step{fill:var(--step)}.step.failed{fill:var(--bad)}
.stream{stroke:var(--dim)}.tick{stroke:var(--good)}.end{fill:var(--good)}.end.bad{fill:var(--bad)}h2{margin-top:2.5rem}code{font-size:13px}`;

/** `date`: when it was run, for people. */
export function reportOf(verdicts: readonly Verdict[], date: string): string {
  const passed = verdicts.filter(({ verdict }) => verdict === 'passed').length;
  const rows = verdicts.map(
    ({ name, title, verdict, ms, after }) =>
      `<tr><td><a href="#${escaped(name)}">${escaped(name)}</a></td><td>${escaped(title)}<br><small>${escaped(after)}</small></td><td class="${verdict}">${verdict}</td><td>${(ms / 1000).toFixed(1)} s</td></tr>`,
  );
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1"><title>Scenarios: ${passed} of ${verdicts.length} passed</title><style>${css}</style></head>
<body><h1>${passed} of ${verdicts.length} scenarios passed</h1><p><small>${escaped(date)}</small></p>
<table><thead><tr><th>scenario</th><th>story</th><th>verdict</th><th>time</th></tr></thead><tbody>${rows.join('\n')}</tbody></table>
${verdicts.map(chapter).join('\n')}
</body></html>
`;
}

function chapter(verdict: Verdict): string {
  const { name, title, why, seed, tape, streams } = verdict;
  const more =
    streams.length > maxStreams ? `<p><small>the first ${maxStreams} of ${streams.length} streams</small></p>` : '';
  return `<section id="${escaped(name)}"><h2>${escaped(title)} <span class="${verdict.verdict}">${verdict.verdict}</span></h2>
<p>seed ${seed}, tape <code>${escaped(tape)}</code>${why === '' ? '' : `<br><span class="failed">${escaped(why)}</span>`}</p>
${drawing(verdict)}${more}</section>`;
}

function drawing({ steps, streams, ms, title }: Verdict): string {
  const shown = streams.slice(0, maxStreams);
  const x = (at: number) => left + ((width - left - 10) * Math.min(Math.max(at, 0), ms)) / Math.max(1, ms);
  const top = 20 + steps.length * rowPx;
  const height = top + shown.length * streamPx + 30;
  const seconds = Array.from({ length: 6 }, (_, index) => (ms * index) / 5);
  const axis = seconds.map(
    (at) =>
      `<line class="axis" x1="${px(x(at))}" x2="${px(x(at))}" y1="14" y2="${height - 14}"/><text x="${px(x(at))}" y="11" text-anchor="middle">${(at / 1000).toFixed(1)} s</text>`,
  );
  return `<svg viewBox="0 0 ${width} ${height}" role="img" aria-label="Timeline of: ${escaped(title)}">
${axis.join('')}
${steps.map((step, index) => stepBar(step, 20 + index * rowPx, x)).join('\n')}
${shown.map((stream, index) => streamLine(stream, index, top + 10 + index * streamPx, x)).join('\n')}
</svg>`;
}

const px = (value: number) => value.toFixed(1);

function stepBar({ name, detail, from, to, error }: StepRecord, y: number, x: (at: number) => number): string {
  const wide = Math.max(2, x(to) - x(from));
  return `<g><title>${escaped(`${name} ${detail}: ${from} to ${to} ms${error === '' ? '' : `, ${error}`}`)}</title><text x="4" y="${y + 12}">${escaped(`${name} ${detail}`.slice(0, 32))}</text><rect class="step${error === '' ? '' : ' failed'}" x="${px(x(from))}" y="${y + 3}" width="${px(wide)}" height="10" rx="2"/></g>`;
}

function streamLine(stream: StreamRecord, index: number, y: number, x: (at: number) => number): string {
  const { sent, ended, end, detail, at } = stream;
  const over = ended > 0 ? ended : sent;
  const every = Math.ceil(at.length / maxTicks);
  const ticks = at
    .filter((_, piece) => piece % every === 0)
    .map((when) => `M${px(x(when))} ${y - 2}v4`)
    .join('');
  const good = end === 'complete' || end === 'left';
  return `<g><title>${escaped(`stream ${index}: ${end} ${detail}, ${at.length} pieces`)}</title><line class="stream" x1="${px(x(sent))}" x2="${px(x(over))}" y1="${y}" y2="${y}"/><path class="tick" d="${ticks}"/><circle class="end${good ? '' : ' bad'}" cx="${px(x(over))}" cy="${y}" r="2.5"/></g>`;
}
