//! The layers of the broker's core: which files know which, by imports and by method calls, and
//! which functions take several parts of a shard.
//!
//! A file may know files of its own layer, and of those with lower numbers. `xtask/layers.toml` has
//! the layer of each file, and how many faults are left. These numbers only fall: a new fault is
//! refused, and so is a number that is too high.
//!
//! Imports are read as the compiler reads them, through re-exports. A method call counts as an edge
//! to the file that defines a method of this name, if only one does; calls inside of macros are not
//! seen.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use syn::visit::{self, Visit};

use crate::source;

/// `xtask/layers.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    /// The folder with the sources.
    sources: String,
    /// Types of which a function takes one.
    parts: BTreeSet<String>,
    /// Crates whose types have methods, too: a call of a name that they have may be one of these.
    others: Vec<String>,
    /// The same of libraries.
    common_methods: BTreeSet<String>,
    left: Counts,
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Layer {
    /// Several layers can have the same number. They do not know each other.
    number: u8,
    name: String,
    /// Files and folders. The longest name that fits counts.
    files: Vec<String>,
}

/// What is still wrong.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// Edges to a layer with a higher number, or with the same one.
    pub upward_edges: usize,
    /// Files that know each other by some way round.
    pub largest_circle: usize,
    /// Functions with two or more parts, `self` counted.
    pub functions_with_parts: usize,
}

/// What was found.
pub struct Report {
    pub counts: Counts,
    /// From, to, and the names that make the edge.
    pub upward: Vec<(String, String, BTreeSet<String>)>,
    pub circle: BTreeSet<String>,
    /// File and function.
    pub functions: Vec<(String, String)>,
}

/// Compares what is there with `xtask/layers.toml`.
///
/// # Errors
///
/// A file cannot be read, or has no layer.
pub fn faults(root: &Path) -> Result<Vec<String>> {
    let rules = rules()?;
    let found = look(root, &rules)?.counts;
    let rows = [
        ("upward_edges", found.upward_edges, rules.left.upward_edges),
        ("largest_circle", found.largest_circle, rules.left.largest_circle),
        ("functions_with_parts", found.functions_with_parts, rules.left.functions_with_parts),
    ];
    let wrong = rows.into_iter().filter(|(_, found, left)| found != left);
    let shown = |(key, found, left): (&str, usize, usize)| {
        let what = match found > left {
            true => "more than before: `cargo xtask layers` lists them",
            false => "write the lower number",
        };
        format!("xtask/layers.toml: {key} = {left}, and there are {found}: {what}")
    };
    Ok(wrong.map(shown).collect())
}

/// All that is found.
///
/// # Errors
///
/// As of [`faults`].
pub fn report(root: &Path) -> Result<Report> {
    look(root, &rules()?)
}

fn rules() -> Result<Rules> {
    toml::from_str(include_str!("../layers.toml")).context("xtask/layers.toml")
}

fn look(root: &Path, rules: &Rules) -> Result<Report> {
    let modules = Modules::read(&root.join(&rules.sources))?;
    let mut ambiguous = rules.common_methods.clone();
    for other in &rules.others {
        let other = Modules::read(&root.join(other))?;
        ambiguous.extend(other.0.into_values().flat_map(|own| own.methods));
    }
    let layer_of = rules.layers_of(modules.0.values().map(|own| &*own.file))?;
    let edges = edges(&modules, &ambiguous);
    let mut upward: Vec<_> = edges
        .iter()
        .filter(|((from, to), _)| !may_know(from, to, &layer_of))
        .map(|((from, to), names)| (from.clone(), to.clone(), names.clone()))
        .collect();
    upward.sort();
    let circle = largest_circle(edges.keys());
    let functions: Vec<_> =
        modules.0.values().flat_map(|own| own.functions(&rules.parts)).collect();
    let counts = Counts {
        upward_edges: upward.len(),
        largest_circle: circle.len(),
        functions_with_parts: functions.len(),
    };
    Ok(Report { counts, upward, circle, functions })
}

impl Rules {
    /// The layer of each file.
    fn layers_of<'a>(
        &self,
        files: impl Iterator<Item = &'a str>,
    ) -> Result<BTreeMap<String, &Layer>> {
        let mut found = BTreeMap::new();
        let mut used = BTreeSet::new();
        for file in files {
            let rows = self.layers.iter();
            let rows = rows.flat_map(|layer| layer.files.iter().map(move |row| (layer, row)));
            let best = rows
                .filter(|(_, row)| file == **row || file.starts_with(&format!("{row}/")))
                .max_by_key(|(_, row)| row.len());
            let (layer, row) = best.with_context(|| {
                format!("xtask/layers.toml: no layer has {file}: add it to the one it belongs to")
            })?;
            used.insert(row);
            found.insert(file.to_owned(), layer);
        }
        let rows = self.layers.iter().flat_map(|own| own.files.iter().map(move |row| (own, row)));
        for (layer, row) in rows {
            ensure!(
                used.contains(row),
                "xtask/layers.toml: layer {} has {row}, and there is no such file",
                layer.name
            );
        }
        Ok(found)
    }
}

/// The own layer, and those with lower numbers.
fn may_know(from: &str, to: &str, layer_of: &BTreeMap<String, &Layer>) -> bool {
    let layers = layer_of.get(from).zip(layer_of.get(to));
    layers.is_some_and(|(own, other)| own.number > other.number || own.name == other.name)
}

/// Modules by their paths; that of the crate is empty.
#[derive(Default)]
struct Modules(BTreeMap<Vec<String>, Module>);

/// What is read of one file, without its tests.
#[derive(Default)]
struct Module {
    file: String,
    items: BTreeSet<String>,
    /// Names that `use` brings in, with the path of each.
    uses: Vec<(String, Vec<String>)>,
    /// Paths in the code that begin at the crate or at a parent.
    paths: BTreeSet<Vec<String>>,
    methods: BTreeSet<String>,
    calls: BTreeSet<String>,
    signatures: Vec<Signature>,
}

/// The name of a function, and the types of `self` and its arguments.
struct Signature {
    name: String,
    types: BTreeSet<String>,
}

impl Modules {
    fn read(folder: &Path) -> Result<Self> {
        let mut all = Self::default();
        for file in source::files(folder, &["rs"])? {
            let parsed = syn::parse_file(&file.text).with_context(|| file.path.clone())?;
            all.add(file.path, &parsed.items);
        }
        Ok(all)
    }

    fn add(&mut self, file: String, items: &[syn::Item]) {
        let name = file.trim_end_matches(".rs").trim_end_matches("mod").trim_end_matches('/');
        let path = match name {
            "lib" => Vec::new(),
            name => name.split('/').map(str::to_owned).collect(),
        };
        let mut own = Module { file, ..Module::default() };
        items.iter().for_each(|item| own.visit_item(item));
        self.0.insert(path, own);
    }

    /// The file that defines what a path names, as seen from a module.
    fn resolve(&self, from: &[String], path: &[String]) -> Option<&str> {
        self.walk(from, path, RE_EXPORTS_MAX)
    }

    fn walk(&self, from: &[String], path: &[String], left: usize) -> Option<&str> {
        let left = left.checked_sub(1)?;
        let (first, rest) = path.split_first()?;
        let (mut at, mut rest) = match &**first {
            "crate" => (Vec::new(), rest),
            "self" => (from.to_vec(), rest),
            "super" => (from.split_last()?.1.to_vec(), rest),
            // Another crate, unless it is a module or a name of this one.
            _ => (from.to_vec(), path),
        };
        while let Some((name, behind)) = rest.split_first() {
            if name == "super" {
                at.pop();
            } else if let Some(deeper) = self.child(&at, name) {
                at = deeper;
            } else {
                let own = self.0.get(&at)?;
                if own.items.contains(name) {
                    return Some(&own.file);
                }
                let mut uses = own.uses.iter().filter(|(known, _)| known == name);
                return uses.find_map(|(_, target)| {
                    let target = target.iter().chain(behind).cloned().collect::<Vec<_>>();
                    // What is used by its own name would be found again and again.
                    (target != rest).then(|| self.walk(&at, &target, left))?
                });
            }
            rest = behind;
        }
        self.0.get(&at).map(|own| &*own.file)
    }

    fn child(&self, at: &[String], name: &str) -> Option<Vec<String>> {
        let path: Vec<String> = at.iter().cloned().chain([name.to_owned()]).collect();
        self.0.contains_key(&path).then_some(path)
    }

    /// The file that alone defines a method of this name.
    fn methods(&self, ambiguous: &BTreeSet<String>) -> BTreeMap<&str, &str> {
        let mut files = BTreeMap::<&str, BTreeSet<&str>>::new();
        for own in self.0.values() {
            for name in own.methods.iter().filter(|name| !ambiguous.contains(*name)) {
                files.entry(name).or_default().insert(&own.file);
            }
        }
        let single = |(name, files): (_, BTreeSet<_>)| {
            (files.len() == 1).then(|| (name, files.into_iter().next()))
        };
        files
            .into_iter()
            .filter_map(single)
            .filter_map(|(name, file)| Some((name, file?)))
            .collect()
    }
}

/// A re-export of a re-export, and so on. Policy: the edge is not found.
const RE_EXPORTS_MAX: usize = 8;

type Edges = BTreeMap<(String, String), BTreeSet<String>>;

fn edges(modules: &Modules, ambiguous: &BTreeSet<String>) -> Edges {
    let methods = modules.methods(ambiguous);
    let mut edges = Edges::new();
    for (path, own) in &modules.0 {
        let mut add = |to: &str, name: String| {
            if to != own.file {
                edges.entry((own.file.clone(), to.to_owned())).or_default().insert(name);
            }
        };
        // Names for others are no knowledge of the file itself.
        let is_index = own.file == "lib.rs";
        for used in own.uses.iter().map(|(_, used)| used).chain(&own.paths).filter(|_| !is_index) {
            if let Some(to) = modules.resolve(path, used) {
                add(to, used.last().cloned().unwrap_or_default());
            }
        }
        for name in &own.calls {
            if let Some(to) = methods.get(&**name) {
                add(to, format!(".{name}()"));
            }
        }
    }
    edges
}

/// The most files of which each reaches each other one.
fn largest_circle<'a>(edges: impl Iterator<Item = &'a (String, String)>) -> BTreeSet<String> {
    let mut next = BTreeMap::<&str, BTreeSet<&str>>::new();
    for (from, to) in edges {
        next.entry(from).or_default().insert(to);
    }
    let reached = |from: &'a str| {
        let (mut found, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(at) = open.pop() {
            let fresh = next.get(at).into_iter().flatten().filter(|to| found.insert(**to));
            open.extend(fresh.collect::<Vec<_>>());
        }
        found
    };
    let all: BTreeMap<&str, BTreeSet<&str>> = next.keys().map(|at| (*at, reached(at))).collect();
    let circles = all.iter().map(|(from, reach)| {
        let own = reach.iter().filter(|to| all.get(**to).is_some_and(|back| back.contains(from)));
        own.map(|&file| file.to_owned()).collect::<BTreeSet<_>>()
    });
    circles.max_by_key(BTreeSet::len).unwrap_or_default()
}

impl Module {
    /// Its functions with two or more of these types.
    fn functions(&self, parts: &BTreeSet<String>) -> Vec<(String, String)> {
        let many = self.signatures.iter().filter(|own| own.types.intersection(parts).count() > 1);
        many.map(|own| (self.file.clone(), own.name.clone())).collect()
    }

    fn note_signature(&mut self, signature: &syn::Signature, own: Option<&syn::Type>) {
        let mut types = Types::default();
        for input in &signature.inputs {
            match (input, own) {
                (syn::FnArg::Typed(input), _) => types.visit_type(&input.ty),
                (syn::FnArg::Receiver(_), Some(own)) => types.visit_type(own),
                (syn::FnArg::Receiver(_), None) => {}
            }
        }
        self.signatures.push(Signature { name: signature.ident.to_string(), types: types.0 });
    }

    fn note_uses(&mut self, front: &[String], tree: &syn::UseTree) {
        let with = |name: &syn::Ident| [front, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.note_uses(&with(&path.ident), &path.tree),
            syn::UseTree::Name(name) if name.ident == "self" => {
                self.uses.push((front.last().cloned().unwrap_or_default(), front.to_vec()));
            }
            syn::UseTree::Name(name) => {
                self.uses.push((name.ident.to_string(), with(&name.ident)));
            }
            syn::UseTree::Rename(own) => {
                self.uses.push((own.rename.to_string(), with(&own.ident)));
            }
            syn::UseTree::Glob(_) => self.uses.push(("*".into(), front.to_vec())),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|item| self.note_uses(front, item));
            }
        }
    }
}

/// The last names of types.
#[derive(Default)]
struct Types(BTreeSet<String>);

impl Visit<'_> for Types {
    fn visit_type_path(&mut self, path: &syn::TypePath) {
        self.0.extend(path.path.segments.last().map(|last| last.ident.to_string()));
        visit::visit_type_path(self, path);
    }
}

impl<'ast> Visit<'ast> for Module {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let (name, attributes) = match item {
            syn::Item::Const(own) => (Some(&own.ident), &own.attrs),
            syn::Item::Enum(own) => (Some(&own.ident), &own.attrs),
            syn::Item::Fn(own) => (Some(&own.sig.ident), &own.attrs),
            syn::Item::Static(own) => (Some(&own.ident), &own.attrs),
            syn::Item::Struct(own) => (Some(&own.ident), &own.attrs),
            syn::Item::Trait(own) => (Some(&own.ident), &own.attrs),
            syn::Item::Type(own) => (Some(&own.ident), &own.attrs),
            syn::Item::Impl(own) => (None, &own.attrs),
            syn::Item::Mod(own) => (None, &own.attrs),
            syn::Item::Use(own) => (None, &own.attrs),
            _ => return,
        };
        if attributes.iter().any(is_test) {
            return;
        }
        self.items.extend(name.map(ToString::to_string));
        match item {
            syn::Item::Use(own) => self.note_uses(&[], &own.tree),
            syn::Item::Fn(own) => self.note_signature(&own.sig, None),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_item_impl(&mut self, own: &'ast syn::ItemImpl) {
        for item in &own.items {
            let syn::ImplItem::Fn(function) = item else { continue };
            self.note_signature(&function.sig, Some(&own.self_ty));
            // What a trait of others asks for has the name of that trait.
            if own.trait_.is_none() && function.sig.receiver().is_some() {
                self.methods.insert(function.sig.ident.to_string());
            }
        }
        visit::visit_item_impl(self, own);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.calls.insert(call.method.to_string());
        visit::visit_expr_method_call(self, call);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        if names.len() > 1 {
            self.paths.insert(names);
        }
        visit::visit_path(self, path);
    }
}

fn is_test(attribute: &syn::Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return false };
    let tokens = list.tokens.to_string();
    list.path.is_ident("cfg") && (tokens == "test" || tokens.contains("testing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modules(files: &[(&str, &str)]) -> Modules {
        let mut all = Modules::default();
        for (file, text) in files {
            let parsed = syn::parse_file(text).expect("it is Rust");
            all.add((*file).to_owned(), &parsed.items);
        }
        all
    }

    fn rules(layers: &[(u8, &str, &[&str])]) -> Rules {
        let layer = |(number, name, files): &(u8, &str, &[&str])| Layer {
            number: *number,
            name: (*name).to_owned(),
            files: files.iter().map(|&file| file.to_owned()).collect(),
        };
        Rules {
            sources: String::new(),
            parts: ["Log", "Groups"].map(str::to_owned).into(),
            others: Vec::new(),
            common_methods: BTreeSet::new(),
            left: Counts::default(),
            layers: layers.iter().map(layer).collect(),
        }
    }

    fn of(edges: &Edges) -> Vec<(&str, &str)> {
        edges.keys().map(|(from, to)| (&**from, &**to)).collect()
    }

    #[test]
    fn imports_are_followed_through_re_exports() {
        let all = modules(&[
            ("lib.rs", "mod a; mod b; pub use b::inner::Deep as Shown; pub use a::A;"),
            ("a.rs", "use crate::{Shown, b::inner}; use std::fmt; pub struct A; fn f(x: Shown) {}"),
            ("b/mod.rs", "pub mod inner; use super::A; fn f() { crate::a::f(); }"),
            ("b/inner.rs", "pub struct Deep; #[cfg(test)] mod tests { use crate::A; }"),
        ]);
        let found = edges(&all, &BTreeSet::new());
        assert_eq!(of(&found), [("a.rs", "b/inner.rs"), ("b/mod.rs", "a.rs")]);
    }

    #[test]
    fn a_call_of_a_method_that_one_file_defines_is_an_edge() {
        let all = modules(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "struct A; impl A { fn store(&self) {} fn push(&self) {} fn both(&self) {} }"),
            ("b.rs", "struct B; impl B { fn both(&self) { x.store(); x.push(); x.both(); } }"),
        ]);
        let ambiguous = ["push".to_owned()].into();
        let found = edges(&all, &ambiguous);
        assert_eq!(of(&found), [("b.rs", "a.rs")]);
        assert_eq!(found.values().next(), Some(&[".store()".to_owned()].into()));
    }

    #[test]
    fn files_know_their_own_layer_and_lower_ones() {
        let rules = rules(&[
            (0, "log", &["log"]),
            (1, "share", &["share"]),
            (1, "retain", &["retain"]),
            (2, "top", &["log/top.rs"]),
        ]);
        let files = ["log/a.rs", "log/b.rs", "log/top.rs", "share/a.rs", "retain/a.rs"];
        let layers = rules.layers_of(files.into_iter()).expect("all have one");
        let may = |from, to| may_know(from, to, &layers);
        assert!(may("log/a.rs", "log/b.rs") && may("share/a.rs", "log/a.rs"));
        assert!(may("log/top.rs", "log/a.rs") && !may("log/a.rs", "log/top.rs"));
        assert!(!may("log/a.rs", "share/a.rs") && !may("share/a.rs", "retain/a.rs"));
        let error = rules.layers_of(["new.rs"].into_iter()).map(drop).expect_err("it has none");
        assert!(error.to_string().contains("no layer has new.rs"), "{error}");
        let error = rules.layers_of(["log/a.rs"].into_iter()).map(drop).expect_err("rows are left");
        assert!(error.to_string().contains("no such file"), "{error}");
    }

    #[test]
    fn the_largest_circle_is_found() {
        let edges = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e"), ("e", "d")];
        let edges = edges.map(|(from, to)| (from.to_owned(), to.to_owned()));
        assert_eq!(largest_circle(edges.iter()), ["a", "b", "c"].map(str::to_owned).into());
    }

    #[test]
    fn functions_with_several_parts_are_counted_with_self() {
        let all = modules(&[(
            "lib.rs",
            "impl Log { fn one(&mut self) {} fn two(&mut self, groups: &mut Groups) {} \
             fn none(groups: &Groups) {} } fn free(log: &mut Option<Log>, groups: &Groups) {}",
        )]);
        let found = all.0[&Vec::new()].functions(&rules(&[]).parts);
        let names: Vec<&str> = found.iter().map(|(_, name)| &**name).collect();
        assert_eq!(names, ["two", "free"]);
    }
}
