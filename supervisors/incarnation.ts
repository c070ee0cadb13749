import { randomInt } from 'node:crypto';

let last = 0;

/**
 * `<instance>-<suffix>`: a new name for every start. Suffixes sort by time, also across a clock that steps back within
 * this process; 20 random bits keep two nodes on one broker apart.
 */
export function mintIncarnation(instance: string): string {
  last = Math.max(Date.now(), last + 1);
  return `${instance}-${last.toString(36)}${randomInt(36 ** 4)
    .toString(36)
    .padStart(4, '0')}`;
}
