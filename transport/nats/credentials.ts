/** Who may use the embedded broker: a password per role, in files that only their owner can read. */
import { randomBytes } from 'node:crypto';
import { readFileSync, statSync } from 'node:fs';
import path from 'node:path';
import { type Role, roles } from './permissions.js';
import { type Files, writePrivate } from './server-folder.js';

/** All that a process needs to connect: what `credentialsFile` holds, as JSON. */
export interface Credentials {
  readonly url: string;
  readonly namespace: string;
  readonly user: Role;
  readonly password: string;
}

/** Reads a credentials file. Throws if others may read it or it is no such file. */
export function readCredentials(file: string): Credentials {
  if ((statSync(file).mode & 0o077) !== 0)
    throw new TypeError(`${file} must be readable by its owner alone (mode 0600)`);
  const value = JSON.parse(readFileSync(file, 'utf8')) as Partial<Credentials>;
  const { url, namespace, user, password } = value;
  if (!url || !namespace || !user || !password || !roles.includes(user))
    throw new TypeError(`${file} holds no credentials`);
  return { url, namespace, user, password };
}

export function credentialsPath(files: Files, role: Role): string {
  return path.join(files.credentials, `${role}.json`);
}

/** The same over restarts, so that children reconnect to a broker that was started anew. */
export function readPasswords(file: string): Record<Role, string> {
  let kept: Partial<Record<Role, unknown>> = {};
  try {
    kept = JSON.parse(readFileSync(file, 'utf8'));
  } catch {
    // First start in this folder, or a file that is not ours to trust.
  }
  const passwords = Object.fromEntries(
    roles.map((role) => {
      const old = kept[role];
      return [role, typeof old === 'string' && /^[\w-]{43}$/.test(old) ? old : randomBytes(32).toString('base64url')];
    }),
  ) as Record<Role, string>;
  writePrivate(file, `${JSON.stringify(passwords)}\n`);
  return passwords;
}
