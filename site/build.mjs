// Builds the pages of main, and of the newest releases, as a website: node build.mjs REPOSITORY OUTPUT
import { execFileSync } from 'node:child_process'
import { cpSync, existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { check } from './check.mjs'

const here = dirname(fileURLToPath(import.meta.url))
const [repository, output] = process.argv.slice(2)
const url = new URL(process.env.SITE_URL ?? 'https://tieredretry.github.io/watermill-retry/')
const files = ['README.md', 'CHANGELOG.md', 'CONTRIBUTING.md', 'docs']
const source = join(here, 'src')

const git = (...args) => execFileSync('git', ['-C', repository, ...args], { maxBuffer: 1 << 28 })
// The newest patch of the newest minor versions: each costs as much time as main.
const minor = (tag) => tag?.slice(0, tag.lastIndexOf('.'))
const releases = git('tag', '--list', 'v*', '--sort=-version:refname').toString().split('\n')
  .filter((tag) => /^v\d+\.\d+\.\d+$/.test(tag))
  .filter((tag, index, all) => minor(tag) !== minor(all[index - 1])).slice(0, 3)
const versions = ['main', ...releases].map((name) => ({ name, path: name === 'main' ? '' : `${name}/` }))

rmSync(output, { recursive: true, force: true })
for (const { name, path } of versions) {
  rmSync(source, { recursive: true, force: true })
  mkdirSync(source, { recursive: true })
  if (name === 'main') {
    for (const file of files) cpSync(join(repository, file), join(source, file), { recursive: true })
  } else {
    execFileSync('tar', ['-x', '-C', source], { input: git('archive', name, ...files) })
  }
  for (const folder of ['', 'docs']) {
    if (existsSync(join(source, folder, 'README.md'))) {
      renameSync(join(source, folder, 'README.md'), join(source, folder, 'index.md'))
    }
  }
  const home = join(source, 'index.md') // without its badges: no page loads anything from another host
  writeFileSync(home, readFileSync(home, 'utf8').replace(/^\[!\[.*\n/gm, ''))
  mkdirSync(join(source, 'public'), { recursive: true })
  cpSync(join(here, 'node_modules/@mermaid-js/tiny/dist/mermaid.tiny.js'), join(source, 'public/mermaid.js'))
  const site = { name, url: url.href, repository: name === 'main' ? repository : '', versions }
  execFileSync('npx', ['vitepress', 'build', '--base', url.pathname + path, '--outDir', join(output, path)],
    { cwd: here, stdio: 'inherit', env: { ...process.env, SITE: JSON.stringify(site) } })
}
process.exitCode = check(output, url)
