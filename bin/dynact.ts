#!/usr/bin/env node
/** The `dynact` command. Each command's code is loaded when it is asked for, so that none pays for the others. */
if (process.argv[2] === 'role') {
  const { runRole } = await import('../supervisors/index.js');
  await runRole(process.argv[3] as 'prefill' | 'decode' | 'gateway');
} else {
  const { main } = await import('./commands/main.js');
  await main(process.argv);
}
