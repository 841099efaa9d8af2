//! The imports between the files of a crate.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::Source;

/// Imports between files, which are named by their module paths, such as `store::memory::table`.
pub(crate) struct Graph {
    pub(crate) imports: BTreeSet<(String, String)>,
}

impl Graph {
    /// A re-exported name stands for the file that defines it. A re-export is not an import, unless the file also uses
    /// the name. The crate's root is left out, because it re-exports everything public.
    pub(crate) fn new(sources: Vec<Source>) -> Self {
        let modules = Modules(sources.into_iter().map(|source| (source.module.clone(), source)).collect());
        let mut imports = BTreeSet::new();
        for source in modules.0.values().filter(|source| !source.module.is_empty()) {
            let used = source.uses.iter().filter(|used| !used.is_public || source.words.contains(&used.name));
            for path in used.map(|used| &used.path).chain(&source.paths) {
                if let Some(to) = modules.resolve(&source.module, path, 0)
                    && to != source.module
                    && !to.is_empty()
                {
                    imports.insert((source.module.join("::"), to.join("::")));
                }
            }
        }
        Self { imports }
    }

    /// Returns the imports that are part of a cycle.
    pub(crate) fn cyclic(&self) -> BTreeSet<(String, String)> {
        let mut next: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (from, to) in &self.imports {
            next.entry(from).or_default().push(to);
        }
        let reachable = |file| {
            let (mut seen, mut open) = (BTreeSet::new(), vec![file]);
            while let Some(file) = open.pop() {
                open.extend(next.get(file).into_iter().flatten().filter(|to| seen.insert(**to)));
            }
            seen
        };
        let reached: BTreeMap<&str, _> = next.keys().map(|file| (*file, reachable(file))).collect();
        let is_cyclic = |(from, to): &&(String, String)| {
            reached.get(to.as_str()).is_some_and(|reached| reached.contains(from.as_str()))
        };
        self.imports.iter().filter(is_cyclic).cloned().collect()
    }
}

struct Modules(BTreeMap<Vec<String>, Source>);

impl Modules {
    /// Returns the file that defines the item of a path in `module`, or `None` for other crates.
    fn resolve(&self, module: &[String], path: &[String], depth: u32) -> Option<Vec<String>> {
        let mut place = module.to_vec();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => {
                place.clear();
                rest = &path[1..];
            }
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|first| first == "super") {
                    place.pop();
                    rest = &rest[1..];
                }
            }
            first => {
                place.push(first.to_owned());
                if !self.0.contains_key(&place) {
                    return None;
                }
                rest = &path[1..];
            }
        }
        for name in rest {
            let child = [place.as_slice(), std::slice::from_ref(name)].concat();
            if !self.0.contains_key(&child) {
                return Some(self.definition(&place, name, depth));
            }
            place = child;
        }
        Some(place)
    }

    /// Returns the file that defines an item of a module.
    fn definition(&self, module: &[String], name: &str, depth: u32) -> Vec<String> {
        let Some(source) = self.0.get(module).filter(|_| depth < 8) else { return module.to_vec() };
        let named = source.uses.iter().find(|used| used.name == name && used.path != [name]);
        if let Some(file) = named.and_then(|used| self.resolve(module, &used.path, depth + 1)) {
            return file;
        }
        for glob in source.uses.iter().filter(|used| used.name == "*") {
            let path = &glob.path[..glob.path.len() - 1];
            if let Some(file) = self.resolve(module, path, depth + 1)
                && self.0.get(&file).is_some_and(|source| source.items.contains(name))
            {
                return file;
            }
        }
        module.to_vec()
    }
}
