//! Parses YAML to a tree of nodes with positions. JSON is YAML, too.

use std::collections::HashMap;
use std::rc::Rc;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, StrInput};

use super::error::Problem;
use crate::error::Position;

/// The maximum size of a file in bytes, which is enough for ten thousand rules.
pub(super) const MAX_BYTES: usize = 4 << 20;
/// The maximum number of nodes. Nodes behind aliases count each time.
const MAX_NODES: usize = 200_000;
/// The maximum depth of lists and mappings, which is enough for 31 nested descriptors.
const MAX_DEPTH: usize = 64;

pub(super) struct YamlNode {
    pub(super) at: Position,
    pub(super) value: YamlValue,
    /// The number of nodes, including itself.
    nodes: usize,
    /// The number of nested lists and mappings, including itself.
    levels: usize,
}

pub(super) enum YamlValue {
    Scalar {
        text: String,
        /// Whether it has no quotes, so that it may be a number, a boolean or null.
        is_plain: bool,
    },
    List(Vec<Rc<YamlNode>>),
    /// Keys and values in turn.
    Mapping(Vec<Rc<YamlNode>>),
}

impl YamlNode {
    pub(super) fn is_plain(&self) -> bool {
        matches!(&self.value, YamlValue::Scalar { is_plain: true, .. })
    }

    pub(super) fn is_null(&self) -> bool {
        let is_null = |text: &str| ["", "~", "null", "Null", "NULL"].contains(&text);
        matches!(&self.value, YamlValue::Scalar { text, is_plain: true } if is_null(text))
    }

    /// Returns the text of a scalar, or else what to write.
    pub(super) fn as_text(&self) -> Result<&str, String> {
        match &self.value {
            YamlValue::Scalar { text, .. } if !self.is_null() => Ok(text),
            _ => Err("write text".to_owned()),
        }
    }

    /// Describes the node in errors.
    pub(super) fn kind(&self) -> String {
        match &self.value {
            _ if self.is_null() => "nothing".to_owned(),
            YamlValue::Scalar { text, .. } => format!("{text:?}"),
            YamlValue::List(_) => "a list".to_owned(),
            YamlValue::Mapping(_) => "a mapping".to_owned(),
        }
    }
}

/// Reads the only document in `text`.
pub(super) fn read(text: &str) -> Result<Rc<YamlNode>, Problem> {
    let whole_file = |message: &str| Problem::new(Position::default(), message);
    if text.len() > MAX_BYTES {
        return Err(whole_file(&format!("the file has more than {MAX_BYTES} bytes: use several files")));
    }
    let parser = Parser::new_from_str(text.strip_prefix('\u{feff}').unwrap_or(text));
    let mut reader = Reader { parser, anchored: HashMap::new(), open: Vec::new(), nodes: 0 };
    let mut root = None;
    while let Some((event, at)) = reader.next()? {
        match event {
            Event::DocumentStart(_) if root.is_some() => {
                return Err(Problem::new(at, "a second document begins here: put it into a file of its own"));
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentStart(_) | Event::DocumentEnd => {}
            event => root = Some(reader.node(event, at)?),
        }
    }
    root.filter(|root| !root.is_null()).ok_or_else(|| whole_file("the file is empty: begin with `domain: …`"))
}

struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    anchored: HashMap<usize, Rc<YamlNode>>,
    /// The positions of the lists and mappings that are being read.
    open: Vec<Position>,
    /// The number of nodes so far.
    nodes: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Option<(Event<'a>, Position)>, Problem> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok(Some((event, position(&span.start)))),
            Some(Err(error)) => Err(self.invalid(&error)),
            None => Ok(None),
        }
    }

    /// Reads the node that begins with `event`.
    fn node(&mut self, event: Event<'a>, at: Position) -> Result<Rc<YamlNode>, Problem> {
        let before = self.nodes;
        let (anchor, value, levels) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let is_text = tag.is_some_and(|tag| tag.is_yaml_core_schema() && tag.suffix == "str");
                let is_plain = style == ScalarStyle::Plain && !is_text;
                self.count(at, 1, 0)?;
                (anchor, YamlValue::Scalar { text: text.into_owned(), is_plain }, 0)
            }
            Event::SequenceStart(anchor, _) | Event::MappingStart(anchor, _) => {
                self.count(at, 1, 1)?;
                let children = self.children(at)?;
                let levels = children.iter().map(|child| child.levels).max().unwrap_or(0) + 1;
                let is_list = matches!(event, Event::SequenceStart(..));
                (anchor, if is_list { YamlValue::List(children) } else { YamlValue::Mapping(children) }, levels)
            }
            Event::Alias(anchor) => {
                let within_itself = "this alias is inside the value that it repeats: write the value out";
                let node = self.anchored.get(&anchor).cloned().ok_or_else(|| Problem::new(at, within_itself))?;
                self.count(at, node.nodes, node.levels)?;
                return Ok(node);
            }
            _ => unreachable!("the parser closes what it opens"),
        };
        let node = Rc::new(YamlNode { at, value, nodes: self.nodes - before, levels });
        if anchor > 0 {
            self.anchored.insert(anchor, node.clone());
        }
        Ok(node)
    }

    /// Reads the children of a list or a mapping at `at`.
    fn children(&mut self, at: Position) -> Result<Vec<Rc<YamlNode>>, Problem> {
        self.open.push(at);
        let mut children = Vec::new();
        while let Some((event, at)) = self.next()? {
            match event {
                Event::SequenceEnd | Event::MappingEnd => break,
                event => children.push(self.node(event, at)?),
            }
        }
        self.open.pop();
        Ok(children)
    }

    /// Counts nodes at a position, with this number of levels.
    fn count(&mut self, at: Position, nodes: usize, levels: usize) -> Result<(), Problem> {
        self.nodes += nodes;
        if self.open.len() + levels > MAX_DEPTH {
            return Err(Problem::new(at, format!("this is nested more than {MAX_DEPTH} levels deep: use fewer")));
        }
        if self.nodes > MAX_NODES {
            return Err(Problem::new(at, format!("the file has more than {MAX_NODES} values: use several files")));
        }
        Ok(())
    }

    /// Creates the error for invalid YAML. A missing bracket is found far behind its counterpart, so the error names
    /// the position of that, too.
    fn invalid(&self, error: &ScanError) -> Problem {
        let mut message = format!("this is not valid YAML: {}", error.info());
        if let Some(Position { line, column }) = self.open.last().filter(|_| message.contains("while parsing a flow")) {
            message += &format!(", which begins on line {line}, column {column}");
        }
        Problem::new(position(error.marker()), message)
    }
}

fn position(marker: &Marker) -> Position {
    Position { line: marker.line(), column: marker.col() + 1 }
}
