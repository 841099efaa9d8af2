//! Parses YAML to a tree of nodes with positions. JSON is YAML, too.

use std::collections::HashMap;
use std::rc::Rc;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError};

use super::problem::{Position, Problem};

/// The maximum size of a file in bytes, which is enough for ten thousand rules.
pub(super) const MAX_BYTES: usize = 4 << 20;
/// The maximum number of nodes. Nodes behind aliases count each time.
const MAX_NODES: usize = 200_000;
/// The maximum depth of lists and mappings, which is enough for 31 nested descriptors.
const MAX_DEPTH: usize = 64;

#[derive(Debug)]
pub(super) struct Node {
    pub(super) at: Position,
    pub(super) value: Value,
    /// The number of nodes, including itself.
    nodes: usize,
    /// The number of levels.
    levels: usize,
}

#[derive(Debug)]
pub(super) enum Value {
    Scalar {
        text: String,
        /// Whether it has no quotes, so that it may be a number, a boolean or null.
        plain: bool,
    },
    List(Vec<Rc<Node>>),
    Mapping(Vec<(Rc<Node>, Rc<Node>)>),
}

impl Node {
    /// Returns whether the node is null.
    pub(super) fn is_null(&self) -> bool {
        match &self.value {
            Value::Scalar { text, plain } => *plain && matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"),
            _ => false,
        }
    }

    /// Describes the node in errors.
    pub(super) fn kind(&self) -> String {
        match &self.value {
            _ if self.is_null() => "nothing".to_owned(),
            Value::Scalar { text, .. } => format!("{text:?}"),
            Value::List(_) => "a list".to_owned(),
            Value::Mapping(_) => "a mapping".to_owned(),
        }
    }
}

/// A list or a mapping that is being read.
struct Open {
    at: Position,
    anchor: usize,
    is_mapping: bool,
    children: Vec<Rc<Node>>,
}

impl Open {
    fn close(mut self) -> (usize, Node) {
        let nodes = self.children.iter().map(|child| child.nodes).sum::<usize>() + 1;
        let levels = self.children.iter().map(|child| child.levels).max().unwrap_or(0) + 1;
        let value = if self.is_mapping {
            let mut children = self.children.drain(..);
            let mut pairs = Vec::new();
            while let (Some(key), Some(value)) = (children.next(), children.next()) {
                pairs.push((key, value));
            }
            Value::Mapping(pairs)
        } else {
            Value::List(self.children)
        };
        (self.anchor, Node { at: self.at, value, nodes, levels })
    }
}

fn position(marker: &Marker) -> Position {
    Position { line: marker.line(), column: marker.col() + 1 }
}

/// Reads the only document in `text`. Returns `None` if there is none.
pub(super) fn read(text: &str) -> Result<Option<Rc<Node>>, Problem> {
    if text.len() > MAX_BYTES {
        let message = format!("the file has more than {MAX_BYTES} bytes: use several files");
        return Err(Problem::new(Position::default(), message));
    }
    let mut parser = Parser::new_from_str(text.strip_prefix('\u{feff}').unwrap_or(text));
    let mut root = None;
    let mut open: Vec<Open> = Vec::new();
    let mut anchored: HashMap<usize, Rc<Node>> = HashMap::new();
    let mut total = 0;
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| invalid_yaml(&error, open.last()))?;
        let at = position(&span.start);
        let (anchor, node) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let is_text = tag.is_some_and(|tag| tag.is_yaml_core_schema() && tag.suffix == "str");
                let plain = style == ScalarStyle::Plain && !is_text;
                let value = Value::Scalar { text: text.into_owned(), plain };
                (anchor, Rc::new(Node { at, value, nodes: 1, levels: 1 }))
            }
            Event::SequenceStart(anchor, _) | Event::MappingStart(anchor, _) => {
                let is_mapping = matches!(event, Event::MappingStart(..));
                if open.len() >= MAX_DEPTH {
                    return Err(too_deep(at));
                }
                open.push(Open { at, anchor, is_mapping, children: Vec::new() });
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(complete) = open.pop() else { continue };
                let (anchor, node) = complete.close();
                // The children are counted already.
                total -= node.nodes - 1;
                (anchor, Rc::new(node))
            }
            Event::Alias(anchor) => match anchored.get(&anchor) {
                Some(node) if open.len() + node.levels > MAX_DEPTH => return Err(too_deep(at)),
                Some(node) => (0, node.clone()),
                None => {
                    return Err(Problem::new(
                        at,
                        "this alias is inside the value that it repeats: write the value out",
                    ));
                }
            },
            Event::DocumentStart(_) if root.is_some() => {
                return Err(Problem::new(at, "a second document begins here: put it into a file of its own"));
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentStart(_) | Event::DocumentEnd => {
                continue;
            }
        };
        total += node.nodes;
        if total > MAX_NODES {
            return Err(Problem::new(at, format!("the file has more than {MAX_NODES} values: use several files")));
        }
        if anchor > 0 {
            anchored.insert(anchor, node.clone());
        }
        match open.last_mut() {
            Some(parent) => parent.children.push(node),
            None => root = Some(node),
        }
    }
    Ok(root)
}

/// A missing bracket is found far behind its counterpart, so the error names the position of that, too.
fn invalid_yaml(error: &ScanError, within: Option<&Open>) -> Problem {
    let mut message = format!("this is not valid YAML: {}", error.info());
    if let Some(Open { at, .. }) = within.filter(|_| message.contains("while parsing a flow")) {
        message += &format!(", which begins on line {}, column {}", at.line, at.column);
    }
    Problem::new(position(error.marker()), message)
}

fn too_deep(at: Position) -> Problem {
    Problem::new(at, format!("this is nested more than {MAX_DEPTH} levels deep: use fewer"))
}
