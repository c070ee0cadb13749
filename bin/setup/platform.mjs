// Where dynact runs natively. Everything else is refused in the first second, with the command that runs it in a container.
import process from 'node:process';

/** libllama's prebuilt files and the standard library they link need this. */
const OLDEST_GLIBC = [2, 34];
const OLDEST_NODE = [20, 19];

/** What `refusal` judges, read from the running process. */
export function thisPlatform() {
  const linux = process.platform === 'linux';
  if (linux && process.report) process.report.excludeNetwork = true;
  const header = linux && process.report ? process.report.getReport().header : {};
  return { os: process.platform, cpu: process.arch, glibc: header.glibcVersionRuntime, node: process.versions.node };
}

/** The text to stop with, or undefined where dynact runs. */
export function refusal({ os, cpu, glibc, node }) {
  const reason = unfit({ os, cpu, glibc });
  if (reason) return page(reason, []);
  if (older(node, OLDEST_NODE)) {
    return page(`this is Node ${node}`, [
      'Install Node 22 (or 24, or 20.19 and later) from https://nodejs.org/en/download',
    ]);
  }
  return undefined;
}

function unfit({ os, cpu, glibc }) {
  if (os !== 'linux') return `this is ${os}/${cpu}`;
  if (cpu !== 'x64' && cpu !== 'arm64') return `this is linux/${cpu}`;
  if (!glibc) return 'this Linux has another C library than glibc';
  if (older(glibc, OLDEST_GLIBC)) return `this is glibc ${glibc}`;
  return undefined;
}

function older(version, [major, minor]) {
  const [a = 0, b = 0] = version.split('.').map(Number);
  return a < major || (a === major && b < minor);
}

function page(reason, advice) {
  return [
    `dynact cannot be set up here: ${reason}.`,
    `It needs Node ${OLDEST_NODE.join('.')} or later on Linux x64 or arm64 with glibc ${OLDEST_GLIBC.join('.')} or later.`,
    ...advice,
    `${advice.length ? 'Or run' : 'Run'} it in a container:`,
    '  docker build -t dynact .',
    '  docker run --rm --init -p 127.0.0.1:8000:8000 dynact',
    '',
  ].join('\n');
}
