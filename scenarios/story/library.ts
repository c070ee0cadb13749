/** Where scenarios are found: by name among ours, or in a file of the user's. */
import { readdirSync } from 'node:fs';
import { basename, extname, isAbsolute, resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { ScenarioError } from './errors.js';
import type { Scenario } from './story.js';

const folder = fileURLToPath(new URL('../stories/', import.meta.url));

export interface Named extends Scenario {
  readonly name: string;
  readonly file: string;
}

export const scenarioNames = (): readonly string[] =>
  readdirSync(folder)
    .filter((file) => file.endsWith('.js'))
    .map((file) => basename(file, '.js'))
    .sort();

/** A name, or a path of a JavaScript module whose default export is a scenario. Throws SCN_NO_FILE. */
export async function readScenario(nameOrFile: string): Promise<Named> {
  const ours = scenarioNames().includes(nameOrFile);
  const file = ours ? resolve(folder, `${nameOrFile}.js`) : isAbsolute(nameOrFile) ? nameOrFile : resolve(nameOrFile);
  const wrong = (why: string, cause?: unknown) => new ScenarioError('SCN_NO_FILE', [nameOrFile, why], cause);
  if (!ours && !/^\.[cm]?js$/.test(extname(file))) {
    throw wrong(
      extname(file) === ''
        ? `there are ${scenarioNames().join(', ')}`
        : 'it is not JavaScript; TypeScript is compiled first',
    );
  }
  let plot: Partial<Scenario> | undefined;
  try {
    plot = ((await import(pathToFileURL(file).href)) as { default?: Partial<Scenario> }).default;
  } catch (error) {
    throw wrong(error instanceof Error ? error.message : String(error), error);
  }
  if (typeof plot?.tell !== 'function' || typeof plot.title !== 'string')
    throw wrong('its default export has no title and tell(story)');
  return {
    title: plot.title,
    after: plot.after ?? '',
    tell: plot.tell,
    name: basename(file).replace(/\.[cm]?js$/, ''),
    file,
  };
}
