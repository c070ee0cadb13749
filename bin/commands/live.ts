import { askSettings, type SettingQuestion } from '../../supervisors/index.js';
import type { ChangeOptions } from './main.js';
import { stateDirOf } from './settings.js';

/** `dynact config set`, `unset` and `get`: prints what is set afterwards. */
export async function change(question: SettingQuestion, options: ChangeOptions): Promise<void> {
  const answers = await askSettings(await stateDirOf(options), question);
  const told = answers.find((answer) => 'settings' in answer);
  if (told !== undefined && 'settings' in told) {
    for (const [key, value] of Object.entries(told.settings)) process.stdout.write(`${key}  ${String(value)}\n`);
    return;
  }
  for (const answer of answers) if ('error' in answer) process.stderr.write(`${answer.error}\n`);
  if (answers.length === 0) process.stderr.write('this node has no gateway\n');
  process.exitCode = 1;
}
