//! Finds the names that a Rust file imports and mentions. It knows just enough of the syntax for this crate's sources.

use std::collections::BTreeSet;

/// A file: its module path, such as `["store", "memory"]`, and the names that its code refers to, without tests.
pub(crate) struct Source {
    pub(crate) module: Vec<String>,
    pub(crate) uses: Vec<Use>,
    /// Paths of at least two segments outside of `use` declarations.
    pub(crate) paths: Vec<Vec<String>>,
    /// All words outside of `use` declarations.
    pub(crate) words: BTreeSet<String>,
    /// The names of the items that the file defines.
    pub(crate) items: BTreeSet<String>,
}

/// One name of a `use` declaration. The name is `*` for a glob.
pub(crate) struct Use {
    pub(crate) path: Vec<String>,
    pub(crate) name: String,
    pub(crate) is_public: bool,
}

impl Source {
    pub(crate) fn parse(module: Vec<String>, text: &str) -> Self {
        let mut source =
            Self { module, uses: Vec::new(), paths: Vec::new(), words: BTreeSet::new(), items: BTreeSet::new() };
        let tokens = without_tests(&tokens(text));
        let mut at = 0;
        while at < tokens.len() {
            let token = tokens[at].as_str();
            let before = at.checked_sub(1).map_or("", |before| tokens[before].as_str());
            let is_capture = tokens.get(at + 1).is_some_and(|next| next == "<");
            if token == "use" && before != "::" && !is_capture {
                let is_public = matches!(before, "pub" | ")");
                at = source.parse_use(&tokens, at + 1, Vec::new(), is_public);
            } else if token == "in" && before == "(" {
                // A visibility such as `pub(in crate::algorithm)` is not an import.
                at += tokens[at..].iter().position(|token| token == ")").unwrap_or(1);
            } else if is_word(token) {
                if matches!(
                    before,
                    "struct" | "enum" | "fn" | "trait" | "type" | "const" | "static" | "union" | "macro_rules"
                ) {
                    source.items.insert(token.to_owned());
                }
                // `pub(in path)`
                let is_visibility = before == "in" && tokens[at - 2] == "(";
                let mut path = vec![token.to_owned()];
                while tokens.get(at + 1).is_some_and(|next| next == "::")
                    && tokens.get(at + 2).is_some_and(|next| is_word(next))
                {
                    at += 2;
                    path.push(tokens[at].clone());
                }
                source.words.extend(path.iter().cloned());
                if path.len() > 1 && !is_visibility {
                    source.paths.push(path);
                }
                at += 1;
            } else {
                // `macro_rules! name`
                if token == "!" && before == "macro_rules" {
                    source.items.extend(tokens.get(at + 1).cloned());
                }
                at += 1;
            }
        }
        source
    }

    /// Reads a tree of names from `at`, and returns its end.
    fn parse_use(&mut self, tokens: &[String], mut at: usize, mut path: Vec<String>, is_public: bool) -> usize {
        loop {
            match tokens.get(at).map_or(";", String::as_str) {
                "::" => at += 1,
                "{" => {
                    at += 1;
                    while tokens[at] != "}" {
                        at = self.parse_use(tokens, at, path.clone(), is_public);
                        at += usize::from(tokens[at] == ",");
                    }
                    return at + 1;
                }
                "as" => {
                    self.uses.push(Use { path, name: tokens[at + 1].clone(), is_public });
                    return at + 2;
                }
                ";" | "," | "}" => {
                    if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
                        path.pop();
                    }
                    let name = path.last().cloned().unwrap_or_default();
                    self.uses.push(Use { path, name, is_public });
                    return at;
                }
                word => {
                    path.push(word.to_owned());
                    at += 1;
                }
            }
        }
    }
}

fn is_word(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Returns the tokens of a file, without comments, strings, characters and white space.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(length) = literal(rest) {
            length
        } else if first.is_alphanumeric() || first == '_' {
            let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            tokens.push(rest[..length].to_owned());
            length
        } else {
            let length = if rest.starts_with("::") { 2 } else { first.len_utf8() };
            if !first.is_whitespace() {
                tokens.push(rest[..length].to_owned());
            }
            length
        };
        rest = &rest[length..];
    }
    tokens
}

/// Returns the length of the string or character at the start of the text.
fn literal(text: &str) -> Option<usize> {
    let prefix = ["br", "b", "c", "r", ""]
        .iter()
        .find(|prefix| text.strip_prefix(**prefix).is_some_and(|quoted| quoted.starts_with(['"', '\'', '#'])))?;
    let prefix = prefix.len();
    let quoted = &text[prefix..];
    if let Some(inner) = quoted.strip_prefix('\'') {
        let end = if inner.starts_with('\\') { 2 + inner[2..].find('\'')? } else { inner.chars().next()?.len_utf8() };
        // A quote without a second one begins a lifetime.
        return inner[end..].starts_with('\'').then_some(prefix + end + 2);
    }
    let hashes = quoted.find(|c| c != '#')?;
    if !quoted[hashes..].starts_with('"') {
        return None;
    }
    if text[..prefix].contains('r') {
        let end = format!("\"{}", "#".repeat(hashes));
        return Some(prefix + hashes + 1 + quoted[hashes + 1..].find(&end)? + end.len());
    }
    if hashes > 0 {
        return None;
    }
    let mut escaped = false;
    let end = quoted[1..].find(|c| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    })?;
    Some(prefix + 1 + end + 1)
}

/// Removes each item after `#[cfg(test)]` or `#[cfg(all(test, …))]`.
fn without_tests(tokens: &[String]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let attribute: String = tokens[at..].iter().take(7).map(String::as_str).collect();
        if !attribute.starts_with("#[cfg(test)") && !attribute.starts_with("#[cfg(all(test") {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        let mut depth = 0_i32;
        loop {
            let token = tokens.get(at).map_or("}", String::as_str);
            depth += i32::from(token == "{") - i32::from(token == "}");
            at += 1;
            if depth <= 0 && matches!(token, ";" | "}") {
                break;
            }
        }
    }
    kept
}
