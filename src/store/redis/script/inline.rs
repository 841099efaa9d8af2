//! Inlines Lua functions.
//!
//! A call of a script creates each of its functions and records anew, which costs 0.1 µs for each function, each variable
//! that functions share and each record. Inlined, a request of one limit creates none: see the figures of [`TEXT`](super::TEXT).
//!
//! A function can be inlined if `return` is its last line, if it has one. A call is inlined if it is a line of its own:
//! `name(arguments)`, or `a, b = name(arguments)`, with or without `local`. The fields of the record `charge` become
//! variables `charge_…`. The result computes the same as the files that it is made of; the tests of the algorithms run
//! it for requests of one limit, and the functions themselves for others.

use std::collections::BTreeMap;
/// The variable whose fields become variables.
const RECORD: &str = "charge";

#[derive(Clone, Debug)]
struct Function<'a> {
    parameters: Vec<&'a str>,
    body: Vec<&'a str>,
    results: Vec<&'a str>,
}

/// Inlines the functions of `libraries` where `main` calls them. The variables of the libraries are put in front, but for
/// those that are an argument of a file or a function of another one.
pub(super) fn inline(main: &str, libraries: &[&str]) -> String {
    let mut inliner = Inliner::default();
    let mut variables = String::new();
    for library in libraries {
        let mut lines = library.lines();
        while let Some(line) = lines.next() {
            if let Some(signature) = line.strip_prefix("local function ") {
                let (name, parameters) = call(signature).expect("a signature");
                let mut body: Vec<_> = lines.by_ref().take_while(|line| *line != "end").collect();
                let results = body.last().and_then(|line| line.strip_prefix("  return ")).map(list);
                if results.is_some() {
                    body.pop();
                }
                let results = results.unwrap_or_default();
                inliner.functions.insert(name, Function { parameters: list(parameters), body, results });
            } else if line.starts_with("local ") && !line.ends_with("...") && !line.contains("= keys.") {
                variables += line;
                variables.push('\n');
            }
        }
    }
    let mut text = String::new();
    let (arguments, rest) = main.split_once("= ...\n").expect("a file that names its arguments");
    rest.lines().for_each(|line| inliner.line(line, &mut text));
    let fields: Vec<_> = inliner.fields.iter().map(|field| format!("charge_{field}")).collect();
    format!("{arguments}= ...\n{variables}local {}\n{}", fields.join(", "), text.replace("charge.", "charge_"))
}

#[derive(Default)]
struct Inliner<'a> {
    functions: BTreeMap<&'a str, Function<'a>>,
    calls: usize,
    /// The fields of the record.
    fields: Vec<&'a str>,
    is_in_record: bool,
}

impl<'a> Inliner<'a> {
    /// Writes a line, with its call inlined if it is one.
    fn line(&mut self, line: &'a str, text: &mut String) {
        let code = line.trim();
        if code.starts_with("--") || code.is_empty() {
            return;
        }
        if code == "local charge = {" || self.is_in_record {
            self.is_in_record = code != "}";
            if let Some((field, value)) =
                code.trim_end_matches(',').split_once(" = ").filter(|(_, value)| *value != "{")
            {
                self.fields.push(field);
                *text += &format!("{RECORD}.{field} = {value}\n");
            }
            return;
        }
        let (targets, called) = code.split_once(" = ").unwrap_or(("", code));
        match call(called).filter(|(name, _)| self.functions.contains_key(name)) {
            Some((name, arguments)) => self.expand(targets, name, arguments, text),
            None => *text += &format!("{line}\n"),
        }
    }

    /// Writes the body of a function in a block of its own. A result for a variable whose name the block uses, too, passes
    /// through one of another name.
    fn expand(&mut self, targets: &str, name: &str, arguments: &str, text: &mut String) {
        let Function { parameters, body, results } = self.functions[name].clone();
        self.calls += 1;
        let (keyword, targets) = targets.strip_prefix("local ").map_or(("", targets), |targets| ("local ", targets));
        let in_body = body.iter().filter_map(|line| line.trim().strip_prefix("local ")).flat_map(declared);
        let in_block: Vec<_> = in_body.chain(parameters.iter().copied()).collect();
        let (mut before, mut after, mut assigned) = (String::new(), String::new(), Vec::new());
        for (target, result) in list(targets).into_iter().zip(results).filter(|(target, _)| *target != RECORD) {
            let mut variable = target.to_owned();
            if in_block.contains(&target) {
                variable = format!("{target}_{}", self.calls);
                before += &format!("local {variable}\n");
                after += &format!("{keyword}{target} = {variable}\n");
            } else if !keyword.is_empty() {
                before += &format!("local {variable}\n");
            }
            assigned.push((variable, result));
        }
        let (variables, values): (Vec<_>, Vec<_>) = assigned.into_iter().unzip();
        let passed = parameters.into_iter().zip(list(arguments)).filter(|(parameter, argument)| parameter != argument);
        let (parameters, arguments): (Vec<_>, Vec<_>) = passed.unzip();
        *text += &format!("{before}do\n");
        if !parameters.is_empty() {
            *text += &format!("local {} = {}\n", parameters.join(", "), arguments.join(", "));
        }
        body.into_iter().for_each(|line| self.line(line, text));
        if !values.is_empty() {
            *text += &format!("{} = {}\n", variables.join(", "), values.join(", "));
        }
        *text += &format!("end\n{after}");
    }
}

/// Returns the variables that follow the keyword `local`.
fn declared(code: &str) -> Vec<&str> {
    list(code.split_once(" = ").map_or(code, |(variables, _)| variables))
}

/// Splits `name(arguments)`.
fn call(code: &str) -> Option<(&str, &str)> {
    code.strip_suffix(')')?.split_once('(')
}

/// Splits a list at its commas, but for those in parentheses.
fn list(code: &str) -> Vec<&str> {
    let mut depth = 0;
    code.split(|character| {
        depth += i32::from(character == '(') - i32::from(character == ')');
        character == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|item| !item.is_empty())
    .collect()
}
