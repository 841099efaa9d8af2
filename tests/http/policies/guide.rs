//! The README and the guide: excerpts match their programs, and links have targets.

use std::path::Path;
use std::{env, fs};

use support::repository;

use crate::policies::example::POLICIES;

/// The URL of the crate's documentation.
const DOCS: &str = "https://docs.rs/tower-ratelimit/latest/tower_ratelimit/";

fn text(path: impl AsRef<Path>) -> String {
    let path = repository(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the text of a page of the guide.
fn page(name: &str) -> String {
    text(format!("src/guide/{name}.md"))
}

/// Returns the names of all pages.
fn pages() -> Vec<String> {
    let files = fs::read_dir(repository("src/guide")).unwrap().map(|entry| entry.unwrap().path());
    let pages = files.filter(|file| file.extension().is_some_and(|extension| extension == "md"));
    let mut pages: Vec<_> = pages.map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    pages.sort();
    pages
}

/// Returns the index of the guide, with the pages that it includes.
fn index() -> String {
    text("src/guide/mod.rs").lines().filter_map(|line| line.strip_prefix("//!")).collect::<Vec<_>>().join("\n")
}

/// Returns the lines without their indentation.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).collect()
}

/// Returns a document without its code blocks.
fn prose(document: &str) -> String {
    document.split("```").step_by(2).collect()
}

/// Returns the targets of links: the text in parentheses after `](`, the files of pictures, and the rest of the line
/// after `[label]: `.
fn links(document: &str) -> impl Iterator<Item = &str> {
    let marks = [("](", ')'), (" src=\"", '"'), (" srcset=\"", '"')];
    let inline = marks.into_iter().flat_map(move |(start, end)| {
        document.split(start).skip(1).filter_map(move |rest| rest.split_once(end)).map(|(link, _)| link)
    });
    let definitions = document.lines().filter(|line| line.starts_with('['));
    let definitions = definitions.filter_map(|line| line.split_once("]: ")).filter(|(label, _)| !label.contains(']'));
    inline.chain(definitions.map(|(_, link)| link))
}

/// Returns the anchors of the headings.
fn anchors(document: &str) -> Vec<String> {
    let prose = prose(document);
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| -> String {
        let kept = heading.trim_start_matches('#').trim().chars();
        let kept = kept.filter(|character| character.is_alphanumeric() || " -_".contains(*character));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

/// Returns the code blocks that are excerpts, each with the last program that was named before it.
fn excerpts(document: &str) -> Vec<(&str, &str)> {
    let blocks = document.match_indices("```rust,ignore\n").map(|(index, start)| {
        let named = document[..index].split('`').rfind(|text| text.starts_with("examples/") && text.ends_with(".rs"));
        let code = document[index + start.len()..].split("```").next().expect("the end of the block");
        (named.expect("a program is named"), code)
    });
    blocks.collect()
}

#[test]
fn excerpts_match_their_programs() {
    let (policies, streams) = (page("policies"), page("streams"));
    for (program, excerpt) in excerpts(&policies).into_iter().chain(excerpts(&streams)) {
        let (excerpt, source) = (lines(excerpt), text(program));
        assert!(lines(&source).windows(excerpt.len()).any(|there| there == excerpt), "{program}: {excerpt:#?}");
    }
    let excerpts = excerpts(&policies);
    for (policy, ..) in POLICIES {
        let program = format!("examples/policies/{policy}.rs");
        assert!(excerpts.iter().any(|(shown, _)| *shown == program), "nothing of {policy} is shown");
    }
}

/// With `UPDATE_EXPECTED=1`, the page is updated.
#[test]
fn complete_programs_match_the_examples() {
    let page = page("programs");
    let excerpts = excerpts(&page);
    assert_eq!(excerpts.len(), 6, "one for each program");
    let mut updated = page.clone();
    for (program, shown) in &excerpts {
        updated = updated.replace(shown, &text(program));
    }
    if env::var_os("UPDATE_EXPECTED").is_some() {
        fs::write(repository("src/guide/programs.md"), &updated).unwrap();
    } else {
        assert!(page == updated, "src/guide/programs.md is out of date: run this test with UPDATE_EXPECTED=1");
    }
}

/// Returns the page and the anchor of a link to the guide.
fn target(link: &str) -> Option<(&str, &str)> {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    if let Some(page) = path.strip_prefix("crate::guide::") {
        return Some((page, anchor));
    }
    let page = path.strip_prefix(DOCS)?.strip_prefix("guide/")?.strip_suffix("index.html")?;
    Some((page.trim_end_matches('/'), anchor))
}

fn check(document: &str, link: &str, page_name: &str, anchor: &str) {
    assert!(pages().iter().any(|page| page == page_name), "{document}: there is no page for {link}");
    let anchors = anchors(&page(page_name));
    assert!(anchor.is_empty() || anchors.iter().any(|known| known == anchor), "{document}: {link}: {anchors:#?}");
}

#[test]
fn links_to_the_guide_lead_somewhere() {
    let mut checked = 0;
    let mut documents: Vec<_> = pages().into_iter().map(|name| (page(&name), name)).collect();
    documents.push((text("README.md"), "README.md".to_owned()));
    for (document, name) in &documents {
        for link in links(&prose(document)) {
            match target(link) {
                Some(("", _)) => {}
                Some((page, anchor)) => check(name, link, page, anchor),
                None if link.starts_with('#') => check(name, link, name, &link[1..]),
                None if name == "README.md" && !link.starts_with("https://") => {
                    assert!(repository(link).exists(), "{name}: {link}");
                }
                // Rustdoc checks links to items.
                None => assert!(link.starts_with("https://") || link.starts_with("crate::"), "{name}: {link}"),
            }
            checked += 1;
        }
    }
    assert!(checked > 100, "only {checked} links were found");
}

#[test]
fn the_index_links_to_every_page() {
    let index = index();
    let linked: Vec<_> = links(&index).map(|link| link.split('#').next().unwrap()).collect();
    for page in pages() {
        assert!(linked.contains(&page.as_str()), "{page} is missing");
    }
    for link in links(&index) {
        let (page, anchor) = link.split_once('#').unwrap_or((link, ""));
        check("the index", link, page, anchor);
    }
}

/// Links of other documents lead to files of the repository.
#[test]
fn links_for_contributors_lead_somewhere() {
    for document in ["CONTRIBUTING.md", ".github/SECURITY.md", "docs/architecture.md"] {
        let (here, folder) = (text(document), Path::new(document).parent().expect("a folder"));
        for link in links(&here).filter(|link| !link.starts_with("https://")) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            assert!(path.is_empty() || repository(folder).join(path).exists(), "{document}: {link}");
            let target = if path.is_empty() { here.clone() } else { text(folder.join(path)) };
            assert!(anchor.is_empty() || anchors(&target).iter().any(|known| known == anchor), "{document}: {link}");
        }
    }
}

#[test]
fn the_readme_shows_the_page_and_links_to_the_examples() {
    let readme = text("README.md");
    assert!(links(&readme).any(|link| link.starts_with("docs/images/")), "there is no picture");
    assert!(links(&readme).any(|link| link == "examples"), "there is no link");
}

/// GitHub and crates.io would show hidden lines.
#[test]
fn the_readme_has_no_hidden_lines() {
    let readme = text("README.md");
    for code in readme.split("```rust").skip(1).map(|rest| rest.split("```").next().unwrap()) {
        assert!(!lines(code).iter().any(|line| *line == "#" || line.starts_with("# ")), "{code}");
    }
}
