import { existsSync, readFileSync, readdirSync } from 'node:fs'
import { dirname, join, posix } from 'node:path'
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitepress'

const source = join(dirname(fileURLToPath(import.meta.url)), '..', 'src')
const site = JSON.parse(process.env.SITE) // of build.mjs
const github = 'https://github.com/tieredretry/watermill-retry'

const title = (page) => readFileSync(join(source, page), 'utf8').match(/^# (.+)$/m)[1].replaceAll('`', '')

// The sidebar has the pages in the order of docs/README.md, each where it is named first.
function sidebar() {
  const seen = new Set(['index.md'])
  const groups = readFileSync(join(source, 'docs/index.md'), 'utf8').split(/^## /m).slice(1).map((section) => {
    const pages = [...section.matchAll(/\]\(([\w-]+\.md)(?:#[^)]*)?\)/g)].map((match) => match[1])
      .filter((page) => !seen.has(page) && seen.add(page))
    return { text: section.slice(0, section.indexOf('\n')), items: pages.map(item) }
  })
  const others = readdirSync(join(source, 'docs')).filter((page) => page.endsWith('.md') && !seen.has(page))
  groups.push({ text: 'More', items: others.map(item) })
  return groups.filter((group) => group.items.length > 0)
}

function item(page) {
  return { text: title(`docs/${page}`), link: `/docs/${page.replace(/\.md$/, '')}` }
}

// A link to a file that is not on the site leads to the repository. The site has pages, and the images that they show.
function address(page, link, shown) {
  if (/^(?:[a-z]+:|#|\/)/i.test(link)) return link
  const [file, anchor] = link.split('#')
  const target = posix.join(posix.dirname(page), file)
  const renamed = target.replace(/(^|\/)README\.md$/, '$1index.md')
  const hash = anchor === undefined ? '' : `#${anchor}`
  if (existsSync(join(source, renamed)) && (shown || renamed.endsWith('.md'))) {
    return posix.relative(posix.dirname(page), renamed).replace(/^(?!\.)/, './') + hash
  }
  if (site.repository && !existsSync(join(site.repository, target))) return link // the build reports it
  return `${github}/blob/${site.name}/${target}${hash}`
}

// GitHub's rule for the anchor of a heading, so that the links of the pages work on both.
const slugify = (text) => text.toLowerCase().replace(/[^\p{L}\p{N}\p{M}_ -]/gu, '').replaceAll(' ', '-')

export default defineConfig({
  lang: 'en',
  title: 'watermill-retry',
  description: 'Retries for Watermill that wait on the broker: no worker sleeps, and no message is lost.',
  srcDir: 'src',
  appearance: true,
  markdown: {
    html: false,
    anchor: { slugify },
    config(md) {
      md.core.ruler.push('addresses', ({ tokens, env }) => {
        for (const token of tokens.flatMap((block) => block.children ?? [])) {
          for (const name of ['href', 'src']) {
            const link = token.attrGet(name)
            if (link) token.attrSet(name, address(env.relativePath, link, name === 'src'))
          }
        }
      })
      const fence = md.renderer.rules.fence
      md.renderer.rules.fence = (tokens, index, ...rest) => {
        const block = tokens[index]
        if (block.info === 'mermaid') return `<Diagram code="${encodeURIComponent(block.content)}" />`
        if (block.info === 'promql') block.info = 'txt' // the highlighter does not know it
        return fence(tokens, index, ...rest)
      }
    }
  },
  themeConfig: {
    search: { provider: 'local' },
    outline: [2, 3],
    sidebar: sidebar(),
    nav: [
      { text: 'Start here', link: '/docs/getting-started' },
      { text: 'All pages', link: '/docs/' },
      {
        text: site.name,
        items: [
          ...site.versions.map(({ name, path }) => ({ text: name, link: site.url + path, target: '_self', rel: '' })),
          { text: 'Changelog', link: '/CHANGELOG' }
        ]
      }
    ],
    socialLinks: [{ icon: 'github', link: github }]
  }
})
