//! What `docs/guide.md` shows of the policies is what they are, and what documents link to is there.

use std::fs;
use std::path::Path;

use support::repository;

use crate::policies::example::POLICIES;

const DOCUMENTS: [&str; 4] = ["README.md", "docs/guide.md", "docs/redis.md", "docs/rules.md"];

fn text(path: impl AsRef<Path>) -> String {
    let path = repository(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The lines, however far they are indented.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).collect()
}

/// What stands in parentheses behind `](`.
fn links(document: &str) -> impl Iterator<Item = &str> {
    document.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link)
}

/// By what a heading is linked to.
fn anchors(document: &str) -> Vec<String> {
    let prose = document.split("```").step_by(2);
    let headings = prose.flat_map(str::lines).filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| -> String {
        let kept = heading.trim_start_matches('#').trim().chars();
        let kept = kept.filter(|character| character.is_alphanumeric() || " -_".contains(*character));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn each_excerpt_stands_in_its_program() {
    let guide = text("docs/guide.md");
    let mut shown = Vec::new();
    for (index, _) in guide.match_indices("```rust,ignore\n") {
        let program = links(&guide[..index]).filter(|link| link.ends_with(".rs")).last().expect("a link to a program");
        let excerpt = guide[index..].split("```").nth(1).expect("its end").trim_start_matches("rust,ignore\n");
        let (excerpt, source) = (lines(excerpt), text(Path::new("docs").join(program)));
        assert!(lines(&source).windows(excerpt.len()).any(|there| there == excerpt), "{program}: {excerpt:#?}");
        shown.push(program);
    }
    for (policy, ..) in POLICIES {
        let program = format!("../examples/policies/{policy}.rs");
        assert!(shown.contains(&program.as_str()), "nothing of {policy} is shown");
    }
}

#[test]
fn links_in_documents_lead_somewhere() {
    let mut checked = 0;
    for document in DOCUMENTS {
        let (here, folder) = (text(document), Path::new(document).parent().expect("a folder"));
        for link in links(&here).filter(|link| !link.starts_with("https://")) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let there = repository(folder).join(path);
            assert!(path.is_empty() || there.exists(), "{document}: {link}");
            if !anchor.is_empty() {
                let document = if path.is_empty() { here.clone() } else { text(folder.join(path)) };
                assert!(anchors(&document).iter().any(|known| known == anchor), "{link}: {:#?}", anchors(&document));
            }
            checked += 1;
        }
    }
    assert!(checked > 20, "only {checked} links were found");
}
