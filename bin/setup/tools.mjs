// Programs that set-up needs from the system, and how to get them.
import { probe, run } from './processes.mjs';
import { SetupError } from './report.mjs';

/** `any`: one of these command lines has to work. Packages by package manager. */
const TOOLS = {
  cmake: {
    any: [['cmake', '--version']],
    packages: { apt: ['cmake'], dnf: ['cmake'], zypper: ['cmake'], pacman: ['cmake'] },
  },
  'a C++ compiler': {
    any: [
      [process.env.CXX || 'c++', '--version'],
      ['g++', '--version'],
      ['clang++', '--version'],
    ],
    packages: { apt: ['g++'], dnf: ['gcc-c++'], zypper: ['gcc-c++'], pacman: ['gcc'] },
  },
  'make or ninja': {
    any: [
      ['make', '--version'],
      ['ninja', '--version'],
    ],
    packages: { apt: ['make'], dnf: ['make'], zypper: ['make'], pacman: ['make'] },
  },
  git: {
    any: [['git', '--version']],
    packages: { apt: ['git'], dnf: ['git'], zypper: ['git'], pacman: ['git'] },
  },
  tar: {
    any: [['tar', '--version']],
    packages: { apt: ['tar'], dnf: ['tar'], zypper: ['tar'], pacman: ['tar'] },
  },
  'Python 3 with pip': {
    any: [['python3', '-m', 'pip', '--version']],
    packages: {
      apt: ['python3', 'python3-pip'],
      dnf: ['python3', 'python3-pip'],
      zypper: ['python3', 'python3-pip'],
      pacman: ['python', 'python-pip'],
    },
  },
};

const MANAGERS = {
  apt: { probe: ['apt-get', '--version'], install: 'apt-get install -y --no-install-recommends' },
  dnf: { probe: ['dnf', '--version'], install: 'dnf install -y' },
  zypper: { probe: ['zypper', '--version'], install: 'zypper install -y' },
  pacman: { probe: ['pacman', '--version'], install: 'pacman -S --needed' },
};

/** Those of `names` that are not there. */
async function missingTools(names) {
  const found = await Promise.all(names.map((name) => works(TOOLS[name].any)));
  return names.filter((_, index) => !found[index]);
}

/**
 * Sees to it that the tools are there: root on Debian or Ubuntu gets them installed, after being told; anybody else gets the
 * command.
 * @throws SetupError
 */
export async function ensureTools(names, report, { uid = process.getuid(), install = run } = {}) {
  const missing = await missingTools(names);
  if (missing.length === 0) return;
  const manager = await packageManager();
  const packages = missing.flatMap((name) => TOOLS[name].packages[manager ?? 'apt']);
  const command = `${MANAGERS[manager ?? 'apt'].install} ${packages.join(' ')}`;
  if (manager !== 'apt' || uid !== 0) throw new SetupError(advice(missing, manager, command));

  report.line(`  ${missing.join(', ')} missing; running as root, so set-up installs: ${command}`);
  const env = { DEBIAN_FRONTEND: 'noninteractive' };
  await install('apt-get', ['update', '-q'], { env });
  await install('apt-get', command.split(' ').slice(1), { env });
  const still = await missingTools(missing);
  if (still.length > 0) throw new SetupError(`${still.join(', ')} still missing after: ${command}`);
}

function advice(missing, manager, command) {
  const what = `missing: ${missing.join(', ')}`;
  return manager
    ? `${what}\nInstall with:\n  sudo ${command}\nthen run the same command again.`
    : `${what}\nInstall with your system's package manager (on Debian or Ubuntu: sudo ${command}).`;
}

async function packageManager() {
  for (const [name, manager] of Object.entries(MANAGERS)) if (await works([manager.probe])) return name;
  return undefined;
}

async function works(commands) {
  for (const [command, ...args] of commands) if ((await probe(command, args)) !== undefined) return true;
  return false;
}
