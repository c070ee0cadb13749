/** What is wrong with a scenario, apart from what it finds. */
const table = {
  SCN_NO_FILE: '{0} is no scenario: {1}',
  SCN_NO_STEP: '{0} has an unknown step: {1}; there are {2}',
  SCN_ORDER: '{0}: {1}',
  SCN_REFUSED: '{0} cannot be done here: {1}',
} as const;

export type ScenarioErrorCode = keyof typeof table;

export class ScenarioError extends Error {
  override readonly name = 'ScenarioError';
  constructor(
    readonly code: ScenarioErrorCode,
    args: readonly string[],
    cause?: unknown,
  ) {
    super(`${code}: ${table[code].replace(/\{(\d)\}/g, (_, index) => args[Number(index)] ?? '')}`, { cause });
  }
}
