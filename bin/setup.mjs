#!/usr/bin/env node
// Prepares a clone for `npm start`, `npm test` and `npm run bench`. Runs before `npm ci`, so nothing here or below may need
// a package, and this first file has to parse on any Node.
import { refusal, thisPlatform } from './setup/platform.mjs';

const reason = refusal(thisPlatform());
if (reason) {
  process.stderr.write(reason);
  process.exit(1);
}
const { setUp } = await import('./setup/run.mjs');
process.exitCode = await setUp(process.argv.slice(2));
