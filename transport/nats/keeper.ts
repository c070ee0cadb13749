/**
 * The keeper: a shell script, because it must survive Node and cost nothing. Three things can happen:
 *  - nats-server ends: the keeper ends with its exit code;
 *  - the last holder of the FIFO ($3) is gone: nobody needs the broker, it is ended;
 *  - standard input closes, that is, the starter died: children have $6 seconds to let go of the FIFO, then it is ended.
 * The process's line of /proc/<pid>/stat ($4) is its identity: pid and start time. The watchers are processes of their own, so that they do
 * their work even if the keeper is killed.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import type { Files } from './server-folder.js';

const keeperScript = `
binary=$1 config=$2 holders=$3 stat=$4 log=$5 grace=$6
exec 4<&0 3<"$holders" </dev/null
"$binary" -c "$config" >>"$log" 2>&1 3<&- 4<&- &
server=$!
cat "/proc/$server/stat" >"$stat.new" && mv "$stat.new" "$stat"
end() {
  kill -TERM "$server" 2>/dev/null
  left=50
  while [ "$left" -gt 0 ] && kill -0 "$server" 2>/dev/null; do sleep 0.1; left=$((left - 1)); done
  kill -KILL "$server" 2>/dev/null
}
(
  exec 4<&-
  while read -r _; do :; done <&3
  end
) &
unheld=$!
(
  exec 3<&-
  while read -r _; do :; done <&4
  left=$grace
  while [ "$left" -gt 0 ] && kill -0 "$server" 2>/dev/null; do sleep 1; left=$((left - 1)); done
  end
) &
unowned=$!
exec 3<&- 4<&-
wait "$server"
code=$?
kill "$unheld" "$unowned" 2>/dev/null
exit "$code"
`;

/** Starts the keeper and with it the server. */
export function spawnKeeper(binary: string, files: Files, folder: string, orphanDeadlineMs: number): ChildProcess {
  const seconds = Math.ceil(orphanDeadlineMs / 1000);
  // Its own session: Ctrl-C in the terminal is the supervisor's to handle, children still need the broker while they drain.
  const keeper = spawn(
    '/bin/sh',
    ['-c', keeperScript, 'nats-keeper', binary, files.config, files.holders, files.pid, files.log, String(seconds)],
    {
      cwd: folder,
      detached: true,
      stdio: ['pipe', 'ignore', 'ignore'],
      env: { PATH: process.env.PATH ?? '/usr/bin:/bin' },
    },
  );
  keeper.stdin?.on('error', () => {});
  keeper.unref();
  (keeper.stdin as unknown as { unref?(): void } | null)?.unref?.();
  return keeper;
}
