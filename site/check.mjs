// Finds links of the built site that lead nowhere, and what a page would load from another host.
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs'
import { join, relative } from 'node:path'

const attribute = /<(\w+)\b[^>]*?\s(?:href|src)="([^"]*)"[^>]*>/g
const unescape = (text) => text.replaceAll('&amp;', '&').replaceAll('&quot;', '"').replaceAll('&#39;', "'")

// check returns 1 if it has found something, and prints it.
export function check(output, url) {
  const pages = new Map()
  for (const name of readdirSync(output, { recursive: true })) {
    if (name.endsWith('.html')) pages.set(join(output, name), readFileSync(join(output, name), 'utf8'))
  }
  const ids = new Map([...pages].map(([file, text]) =>
    [file, new Set([...text.matchAll(/\sid="([^"]*)"/g)].map((match) => unescape(match[1])))]))
  const faults = new Set()
  let links = 0
  for (const [file, text] of pages) {
    const page = relative(output, file)
    const from = new URL(page, url)
    for (const [, tag, value] of text.matchAll(attribute)) {
      const to = new URL(unescape(value), from)
      if (to.origin !== url.origin || !to.pathname.startsWith(url.pathname)) {
        if (tag !== 'a') faults.add(`${page} loads ${value}`)
        else if (to.origin === url.origin) faults.add(`${page} links to ${value}: it is not on the site`)
        continue
      }
      links++
      let target = join(output, decodeURIComponent(to.pathname.slice(url.pathname.length)))
      if (existsSync(target) && statSync(target).isDirectory()) target = join(target, 'index.html')
      const anchor = decodeURIComponent(to.hash.slice(1))
      if (!existsSync(target)) faults.add(`${page} links to ${value}: there is no such file`)
      else if (anchor && !ids.get(target)?.has(anchor)) faults.add(`${page} links to ${value}: there is no such heading`)
    }
  }
  if (links === 0) faults.add('the site has no links')
  for (const fault of faults) console.error(fault)
  console.log(`${pages.size} pages, ${links} links, ${faults.size} faults`)
  return faults.size === 0 ? 0 : 1
}
