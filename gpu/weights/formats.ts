/** Which format of a model's weights runs fastest on which processor (decision 0004). */
import { readFileSync } from 'node:fs';

/** `source` runs the canonical file as it is. */
export type WeightsFormat = 'q4_0-pure' | 'iq4_nl-pure' | 'q8_0-pure' | 'source';

/** Values of llama.h's llama_ftype. */
export const ftypes: Readonly<Record<Exclude<WeightsFormat, 'source'>, number>> = {
  'q4_0-pure': 2,
  'iq4_nl-pure': 25,
  'q8_0-pure': 7,
};

/** Formats by processor, fastest first; the first row that fits counts, and of it the first format that keeps the quality. Decision 0004. */
const fastest: readonly {
  readonly arch: string;
  readonly flag?: string;
  readonly formats: readonly WeightsFormat[];
}[] = [
  { arch: 'x64', flag: 'avx512f', formats: ['iq4_nl-pure', 'q8_0-pure'] },
  { arch: 'x64', formats: ['q4_0-pure', 'q8_0-pure'] },
  { arch: 'arm64', formats: ['q4_0-pure', 'q8_0-pure'] },
];

/**
 * Sources whose 4-bit formats have failed the gate on every machine they were tried on (decision 0004): trying them again at each first
 * start costs minutes and teaches nothing. The format that is left is still measured.
 */
export const settled: Readonly<Record<string, readonly WeightsFormat[]>> = {
  // SmolLM2-135M-Instruct, Q4_1
  b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53: ['q8_0-pure'],
};

/** Formats worth trying on a processor, fastest first; its flags are those of /proc/cpuinfo. */
export function formatsFor(
  arch: string = process.arch,
  flags: ReadonlySet<string> = cpuFlags(),
): readonly WeightsFormat[] {
  const row = fastest.find((entry) => entry.arch === arch && (entry.flag === undefined || flags.has(entry.flag)));
  return row?.formats ?? ['source'];
}

function cpuFlags(): ReadonlySet<string> {
  try {
    const line = /^flags\s*:(.*)$/m.exec(readFileSync('/proc/cpuinfo', 'utf8'));
    return new Set(line?.[1]?.trim().split(' '));
  } catch {
    return new Set();
  }
}
