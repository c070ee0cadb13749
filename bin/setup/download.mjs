// Files pinned by SHA-256, from the first source that has them.
import { createWriteStream, mkdirSync, renameSync, rmSync, statSync } from 'node:fs';
import { basename, dirname } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { isIntact, remember, sha256Of } from './cache.mjs';
import { SetupError } from './report.mjs';

/** An unreachable host must not hold up the next source. */
const CONNECT_MS = 5_000;
/** A download that stands still this long has failed; what it has is kept for the next try. */
const STALL_MS = 30_000;

/**
 * Puts the file with hash `sha256` at `dest`. Sources are tried in turn: `{ name, fetch(partial, ctx) }` writes `partial`, and
 * may go on where an earlier try stopped. A file with another hash never gets the name `dest`.
 * @returns the name of the source, or undefined if the file was there.
 */
export async function fetchPinned(cache, { dest, sha256, sources, advice = '' }, ctx) {
  if (await isIntact(cache, dest, sha256)) return undefined;
  mkdirSync(dirname(dest), { recursive: true });
  if (fileSize(dest) > 0) ctx.note(`${basename(dest)} in the cache is damaged: fetching it again`);
  const failures = [];
  for (const source of sources) {
    // Bytes of one source are no start for another.
    const partial = `${dest}.${source.name.replace(/\W+/g, '-')}.part`;
    try {
      await source.fetch(partial, ctx);
      const got = await sha256Of(partial);
      if (got !== sha256) throw new Error(`its SHA-256 is ${got}, not ${sha256}`);
      renameSync(partial, dest);
      remember(cache, dest, sha256);
      return source.name;
    } catch (error) {
      if (!error.resumable) rmSync(partial, { force: true });
      failures.push(`  ${source.name}: ${reasonOf(error)}`);
    }
  }
  throw new SetupError([`could not get ${basename(dest)}:`, ...failures, advice].filter(Boolean).join('\n'));
}

/** A source that is a plain URL. Resumes by a range request. */
export function fromUrl(name, url) {
  return {
    name,
    async fetch(partial, { progress }) {
      const have = fileSize(partial);
      const abort = new AbortController();
      let timer = setTimeout(() => abort.abort(new Error(`no answer in ${CONNECT_MS / 1000} s`)), CONNECT_MS);
      const restart = () => {
        clearTimeout(timer);
        timer = setTimeout(() => abort.abort(new Error(`nothing came for ${STALL_MS / 1000} s`)), STALL_MS);
      };
      try {
        const headers = have > 0 ? { range: `bytes=${have}-` } : {};
        const response = await fetch(url, { headers, signal: abort.signal });
        if (response.status === 416) return; // nothing is left of it: the hash decides
        if (!response.ok) throw new Error(`HTTP status ${response.status}`);
        const resumed = response.status === 206;
        let done = resumed ? have : 0;
        const total = done + Number(response.headers.get('content-length') ?? 0);
        restart();
        await pipeline(
          response.body,
          async function* (chunks) {
            for await (const chunk of chunks) {
              restart();
              done += chunk.length;
              progress(done, total);
              yield chunk;
            }
          },
          createWriteStream(partial, { flags: resumed ? 'a' : 'w' }),
        );
      } catch (error) {
        throw Object.assign(new Error(reasonOf(abort.signal.reason ?? error)), { resumable: fileSize(partial) > 0 });
      } finally {
        clearTimeout(timer);
      }
    },
  };
}

function fileSize(file) {
  return statSync(file, { throwIfNoEntry: false })?.size ?? 0;
}

const reasonOf = (error) => error.cause?.message || error.message;
