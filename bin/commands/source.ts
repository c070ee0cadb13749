/** Where `dynact trace` and `dynact tape` read: the node of the state folder, a file, or what was imported into the node. */
import { recordParts } from '../../supervisors/index.js';
import { configurationOf } from './settings.js';
import { UsageError } from './usage.js';

export interface SourceOptions {
  readonly file?: string;
  readonly imported?: string;
  readonly stateDir?: string;
}

export async function sourceOf({ file, imported, stateDir }: SourceOptions) {
  if (file !== undefined && imported !== undefined) throw new UsageError('use either --file or --imported');
  const { openFile, openImported, openNode } = await recordParts();
  if (file !== undefined) return openFile(file);
  const { config } = await configurationOf({ stateDir });
  return imported === undefined ? openNode(config) : openImported(config, imported);
}
