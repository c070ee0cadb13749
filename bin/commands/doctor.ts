/** `dynact doctor`: what dynact needs on this machine, checked one by one, with what to do where it is missing. */
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { access, constants, mkdir, statfs } from 'node:fs/promises';
import { createServer } from 'node:net';
import { availableParallelism, totalmem } from 'node:os';
import { dirname } from 'node:path';
import { promisify } from 'node:util';
import {
  cacheFolder,
  describe,
  lockHolder,
  modelSource,
  type ResolvedConfig,
  resolveToolchain,
} from '../../supervisors/index.js';
import type { Options } from './main.js';
import { configurationOf } from './settings.js';

interface Finding {
  readonly ok: boolean;
  readonly detail: string;
  /** What to do; a finding that is not ok and has `optional` is a remark. */
  readonly advice?: string;
  readonly optional?: true;
}

const run = promisify(execFile);
const GiB = 1024 ** 3;
const leastFreeBytes = 2 * GiB;

export async function doctor(options: Options): Promise<void> {
  const { config } = await configurationOf(options);
  const checks: [string, () => Promise<Finding>][] = [
    ['node', nodeVersion],
    ['platform', platform],
    ['cores and memory', machine],
    ['build tools', buildTools],
    ['nats-server', () => natsServer(config)],
    ['model', () => model(config)],
    ['native addon', () => addon(config)],
    ['http port', () => httpPort(config)],
    ['state folder', () => stateFolder(config)],
    ['disk space', () => diskSpace(config)],
  ];
  const findings: (Finding & { readonly check: string })[] = [];
  for (const [check, examine] of checks) {
    const finding = await examine().catch((error): Finding => ({ ok: false, detail: describe(error) }));
    findings.push({ check, ...finding });
    if (!options.json) print(check, finding);
  }
  const healthy = findings.every(({ ok, optional }) => ok || optional);
  if (options.json) process.stdout.write(`${JSON.stringify({ healthy, findings })}\n`);
  else process.stdout.write(healthy ? 'all that is needed is here\n' : 'dynact cannot run as configured\n');
  process.exitCode = healthy ? 0 : 1;
}

function print(check: string, { ok, detail, advice, optional }: Finding): void {
  const mark = ok ? 'ok  ' : optional ? 'note' : 'FAIL';
  process.stdout.write(`${mark}  ${check}: ${detail}\n${ok || advice === undefined ? '' : `      → ${advice}\n`}`);
}

async function nodeVersion(): Promise<Finding> {
  const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);
  const ok = major > 20 || (major === 20 && minor >= 19);
  return { ok, detail: process.version, advice: 'install Node 20.19 or later' };
}

async function platform(): Promise<Finding> {
  const { glibcVersionRuntime: glibc } = (process.report.getReport() as { header: { glibcVersionRuntime?: string } })
    .header;
  const ok = process.platform === 'linux' && glibc !== undefined;
  const detail = `${process.platform} ${process.arch}${glibc ? `, glibc ${glibc}` : ''}`;
  return {
    ok,
    detail,
    advice: 'use Linux with glibc, or the container: docker build -t dynact . && docker run -p 8000:8000 dynact',
  };
}

async function machine(): Promise<Finding> {
  const gib = totalmem() / GiB;
  const detail = `${availableParallelism()} cores, ${gib.toFixed(1)} GiB`;
  return { ok: gib >= 2, detail, advice: 'lower --slots or --context-tokens', optional: true };
}

async function buildTools(): Promise<Finding> {
  const missing: string[] = [];
  for (const tool of ['cmake', 'c++', 'make']) await run(tool, ['--version']).catch(() => missing.push(tool));
  return {
    ok: missing.length === 0,
    detail: missing.length === 0 ? 'cmake, c++, make' : `missing: ${missing.join(', ')}`,
    advice: 'apt-get install -y cmake g++ make (needed only to build the native addon)',
    optional: true,
  };
}

async function natsServer(config: ResolvedConfig): Promise<Finding> {
  if (config.nats.url !== '') return { ok: true, detail: 'external, see nats.url' };
  const { natsServer: binary } = resolveToolchain();
  const { stdout } = await run(binary, ['--version']);
  const found = /v?(\d+)\.(\d+)\.\d+/.exec(stdout);
  const ok = found !== null && (Number(found[1]) > 2 || Number(found[2]) >= 11);
  return { ok, detail: `${stdout.trim()} (${binary})`, advice: 'run npm run setup: 2.11 or later is needed' };
}

async function model(config: ResolvedConfig): Promise<Finding> {
  const source = await modelSource(config);
  if (source === undefined) return { ok: true, detail: `${config.model.id}: needs no weights` };
  const { id, path, sha256 } = source;
  if (sha256 === undefined) return { ok: true, detail: `${id}: ${path}` };
  const hash = createHash('sha256');
  for await (const chunk of createReadStream(path, { highWaterMark: 1024 * 1024 })) hash.update(chunk as Buffer);
  const ok = hash.digest('hex') === sha256;
  return { ok, detail: `${id}: ${path}${ok ? '' : ' is damaged'}`, advice: `delete ${path} and run npm run setup` };
}

/** In a process of its own: a library that aborts must not take the doctor with it. */
async function addon(config: ResolvedConfig): Promise<Finding> {
  const gpu = new URL('../../gpu/index.js', import.meta.url).href;
  const code = `const { loadNative } = await import(${JSON.stringify(gpu)}); loadNative(${JSON.stringify(config.engine.gpu)});`;
  const optional = config.engine.kind === 'mock' ? { optional: true as const } : {};
  try {
    await run(process.execPath, ['--input-type=module', '-e', code], { timeout: 30_000 });
    return { ok: true, detail: `loads (${config.engine.gpu})` };
  } catch (error) {
    const { stderr } = error as { stderr?: string };
    const detail = /^\s*(?:\w*Error[^\n]*)$/m.exec(stderr ?? '')?.[0]?.trim() ?? describe(error);
    return { ok: false, detail, advice: 'run npm run setup', ...optional };
  }
}

async function httpPort({ http, node, topology }: ResolvedConfig): Promise<Finding> {
  if (topology.gateway === 0) return { ok: true, detail: 'no gateway on this node' };
  const holder = await lockHolder(node.stateDir);
  if (holder) return { ok: true, detail: `a node (pid ${holder.pid}) runs in this folder` };
  return new Promise((resolve) => {
    const server = createServer();
    server.once('error', (error: NodeJS.ErrnoException) =>
      resolve({
        ok: false,
        detail: `${http.host}:${http.port}: ${error.code === 'EADDRINUSE' ? 'in use' : error.message}`,
        advice: 'choose another with --port or DYNACT_HTTP_PORT',
      }),
    );
    server.listen(http.port, http.host, () =>
      server.close(() => resolve({ ok: true, detail: `${http.host}:${http.port} is free` })),
    );
  });
}

async function stateFolder({ node }: ResolvedConfig): Promise<Finding> {
  await mkdir(node.stateDir, { recursive: true, mode: 0o700 });
  await access(node.stateDir, constants.W_OK);
  return { ok: true, detail: node.stateDir };
}

async function diskSpace({ node }: ResolvedConfig): Promise<Finding> {
  const space = async (path: string) => {
    const { bavail, bsize } = await statfs(path);
    return bavail * bsize;
  };
  const state = await space(node.stateDir);
  const cache = await space(cacheFolder()).catch(() => space(dirname(dirname(cacheFolder()))));
  const detail = `${(state / GiB).toFixed(1)} GiB for the state folder, ${(cache / GiB).toFixed(1)} GiB for the cache`;
  return {
    ok: Math.min(state, cache) >= leastFreeBytes,
    detail,
    advice: 'free 2 GiB, or move the folder with --state-dir',
  };
}
