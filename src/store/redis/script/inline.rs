//! Inlines Lua functions.
//!
//! A call of a script creates each of its functions and records anew, which costs 0.1 µs for each function, each
//! variable that functions share and each record.
//!
//! A function can be inlined if `return` is its last line, if it has one. A call is inlined if it is a line of its own:
//! `file.name(arguments)`, or `a, b = file.name(arguments)`, with or without `local`. A file may name the functions of
//! another one by a line `local name, other = file.name, file.other`. The result computes the same as the files that it
//! is made of; the tests compare both with the algorithms.

use std::collections::BTreeMap;

use super::records::field;

/// The variable whose fields can become variables.
const RECORD: &str = "charge";

/// The replacement of the records of inlined functions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Records {
    Keep,
    /// There is one record at a time, whose fields become variables `charge_…`.
    AsVariables,
}

#[derive(Clone, Debug)]
struct Function<'a> {
    /// The file that it is from.
    library: &'a str,
    parameters: Vec<&'a str>,
    body: Vec<&'a str>,
    results: Vec<&'a str>,
}

/// Inlines the functions of `libraries`, each with its name, where `main` calls them.
pub(super) fn inline(main: &str, libraries: &[(&str, &str)], records: Records) -> String {
    let mut inliner = Inliner { is_record_kept: records == Records::Keep, ..Inliner::default() };
    for (library, source) in libraries {
        inliner.read(library, source);
    }
    let (arguments, rest) = main.split_once("= ...\n").expect("a file that names its arguments");
    let mut text = String::new();
    rest.lines().for_each(|line| inliner.line("", line, &mut text));
    let variables: String = inliner.variables.iter().map(|(name, value)| format!("local {name} = {value}\n")).collect();
    if records == Records::Keep {
        return format!("{arguments}= ...\n{variables}{text}");
    }
    let fields: Vec<_> = inliner.fields.iter().map(|field| format!("charge_{field}")).collect();
    format!("{arguments}= ...\n{variables}local {}\n{}", fields.join(", "), text.replace("charge.", "charge_"))
}

#[derive(Default)]
struct Inliner<'a> {
    /// The functions by the names of their files and their own.
    functions: BTreeMap<String, Function<'a>>,
    /// The names that files have given to functions of others.
    aliases: BTreeMap<(&'a str, &'a str), &'a str>,
    /// The variables that the functions of a file share, with their values.
    variables: Vec<(&'a str, &'a str)>,
    calls: usize,
    is_record_kept: bool,
    /// The fields of the record.
    fields: Vec<&'a str>,
    is_in_record: bool,
}

impl<'a> Inliner<'a> {
    /// Reads the functions and variables of a file.
    fn read(&mut self, library: &'a str, source: &'a str) {
        let mut lines = source.lines();
        while let Some(line) = lines.next() {
            if let Some(signature) = line.strip_prefix("local function ") {
                let (name, parameters) = call(signature).expect("a signature");
                let mut body: Vec<_> = lines.by_ref().take_while(|line| *line != "end").collect();
                let results = body.last().and_then(|line| line.strip_prefix("  return ")).map(list);
                if results.is_some() {
                    body.pop();
                }
                let function =
                    Function { library, parameters: list(parameters), body, results: results.unwrap_or_default() };
                self.functions.insert(format!("{library}.{name}"), function);
            } else if let Some(declaration) = line.strip_prefix("local ").filter(|line| !line.ends_with("...")) {
                let (names, values) = declaration.split_once(" = ").unwrap_or((declaration, ""));
                for (position, name) in list(names).into_iter().enumerate() {
                    self.variable(library, name, list(values).get(position).copied().unwrap_or("nil"));
                }
            }
        }
    }

    /// Reads a variable that the functions of a file share, unless it names another file or a function of one.
    fn variable(&mut self, library: &'a str, name: &'a str, value: &'a str) {
        if value.starts_with("load(") {
            return;
        }
        if self.functions.contains_key(value) {
            self.aliases.insert((library, name), value);
            return;
        }
        match self.variables.iter().find(|(known, _)| *known == name) {
            Some((_, known)) => assert_eq!(*known, value, "{name} is another variable in another file"),
            None => self.variables.push((name, value)),
        }
    }

    /// Returns the function that a file calls by `name`.
    fn function(&self, library: &str, name: &str) -> Option<Function<'a>> {
        let own = self.functions.get(&format!("{library}.{name}"));
        let alias = self.aliases.get(&(library, name)).and_then(|alias| self.functions.get(*alias));
        own.or(alias).or_else(|| self.functions.get(name)).cloned()
    }

    /// Writes a line of a file, with its call inlined if it is one.
    fn line(&mut self, library: &'a str, line: &'a str, text: &mut String) {
        let code = line.trim();
        if code.starts_with("--") || code.is_empty() {
            return;
        }
        if !self.is_record_kept && (code == "local charge = {" || self.is_in_record) {
            self.is_in_record = code != "}";
            if let Some((field, value)) = field(code) {
                let value = value.trim_end_matches(',');
                if !self.fields.contains(&field) {
                    self.fields.push(field);
                }
                *text += &format!("{RECORD}.{field} = {value}\n");
            }
            return;
        }
        let (targets, called) = code.split_once(" = ").unwrap_or(("", code));
        match call(called).and_then(|(name, arguments)| Some((self.function(library, name)?, arguments))) {
            Some((function, arguments)) => self.expand(targets, function, arguments, text),
            None => *text += &format!("{line}\n"),
        }
    }

    /// Writes the body of a function in a block of its own. A result for a variable whose name the block uses, too,
    /// passes through one of another name.
    fn expand(&mut self, targets: &str, function: Function<'a>, arguments: &str, text: &mut String) {
        let Function { library, parameters, body, results } = function;
        self.calls += 1;
        let (keyword, targets) = targets.strip_prefix("local ").map_or(("", targets), |targets| ("local ", targets));
        let in_body = body.iter().filter_map(|line| line.trim().strip_prefix("local ")).flat_map(declared);
        let in_block: Vec<_> = in_body.chain(parameters.iter().copied()).collect();
        let (mut before, mut after, mut assigned) = (String::new(), String::new(), Vec::new());
        let is_variable = |target: &str| self.is_record_kept || target != RECORD;
        for (target, result) in list(targets).into_iter().zip(results).filter(|(target, _)| is_variable(target)) {
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
        body.into_iter().for_each(|line| self.line(library, line, text));
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
