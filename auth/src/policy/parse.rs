//! From a document's text to statements that can be asked.

use super::Kind;
use super::action::{self, Action, ActionSet, Level};
use super::condition::Condition;
use super::error::{Flaw, Place, PolicyError};
use super::json::Json;
use super::key::{KeyRef, Scope, TagKey};
use super::operator::Operator;
use super::principal::Principals;
use super::resource::ResourcePattern;
use super::statement::{Effect, Resources, Statement};

type Elements = [(String, Json)];

/// Reads a document.
pub(super) fn statements(text: &str, kind: &Kind) -> Result<Vec<Statement>, PolicyError> {
    let document = Place::DOCUMENT;
    check_length(text, kind).map_err(|flaw| document.error(flaw))?;
    let json: Json = serde_json::from_str(text)
        .map_err(|error| document.error(Flaw::Json(error.to_string())))?;
    let Json::Object(elements) = json else {
        return Err(document.error(Flaw::Type("an object")));
    };
    check_names(&elements, &["Version", "Id", "Statement"], &document)?;
    if let Some(id) = find(&elements, "Id") {
        id.text().ok_or_else(|| document.at("Id").error(Flaw::Type("a string")))?;
    }
    let variables = match find(&elements, "Version").map(|version| (version.text(), version)) {
        None | Some((Some("2008-10-17"), _)) => false,
        Some((Some("2012-10-17"), _)) => true,
        Some((_, other)) => {
            let said = other.scalar().unwrap_or_default();
            return Err(document.at("Version").error(Flaw::Version(said)));
        }
    };
    let place = document.at("Statement");
    let list = find(&elements, "Statement").ok_or_else(|| place.error(Flaw::Missing))?;
    let list = list.one_or_many();
    if list.is_empty() {
        return Err(place.error(Flaw::Empty));
    }
    let mut statements: Vec<Statement> = Vec::with_capacity(list.len());
    for (number, json) in (1..).zip(list) {
        let mut place = Place { statement: Some(number), ..Place::DOCUMENT };
        let Json::Object(elements) = json else {
            return Err(place.error(Flaw::Type("an object")));
        };
        let sid = sid(elements, kind, &place)?;
        place.sid.clone_from(&sid);
        if let Some(sid) = sid.as_ref().filter(|sid| !sid.is_empty()) {
            let twice = statements.iter().any(|other| other.sid.as_deref() == Some(&**sid));
            if twice {
                return Err(place.at("Sid").error(Flaw::Duplicate(sid.clone())));
            }
        }
        let reader = Reader { elements, kind, variables, place };
        statements.push(reader.statement(sid)?);
    }
    Ok(statements)
}

fn check_length(text: &str, kind: &Kind) -> Result<(), Flaw> {
    let limit = kind.limit();
    let length = match kind {
        Kind::Bucket(_) => text.len(),
        // IAM does not count white space. What is only that is bounded, too.
        _ if text.len() > limit * 8 => text.len(),
        _ => text.chars().filter(|c| !c.is_whitespace()).count(),
    };
    if length > limit { Err(Flaw::TooLong { length, limit }) } else { Ok(()) }
}

fn find<'j>(elements: &'j Elements, name: &str) -> Option<&'j Json> {
    elements.iter().find(|(known, _)| known == name).map(|(_, value)| value)
}

/// Every element is known and stands there once.
fn check_names(elements: &Elements, known: &[&str], place: &Place) -> Result<(), PolicyError> {
    for (at, (name, _)) in elements.iter().enumerate() {
        if !known.contains(&name.as_str()) {
            return Err(place.error(Flaw::UnknownElement(name.clone())));
        }
        if elements[..at].iter().any(|(other, _)| other == name) {
            return Err(place.error(Flaw::Duplicate(name.clone())));
        }
    }
    Ok(())
}

fn sid(elements: &Elements, kind: &Kind, place: &Place) -> Result<Option<String>, PolicyError> {
    let Some(json) = find(elements, "Sid") else { return Ok(None) };
    let place = place.at("Sid");
    let sid = json.text().ok_or_else(|| place.error(Flaw::Type("a string")))?;
    let plain = sid.chars().all(|c| c.is_ascii_alphanumeric());
    if plain || matches!(kind, Kind::Bucket(_)) {
        Ok(Some(sid.to_owned()))
    } else {
        Err(place.error(Flaw::Sid(sid.to_owned())))
    }
}

/// Reads one statement.
struct Reader<'j> {
    elements: &'j Elements,
    kind: &'j Kind,
    variables: bool,
    place: Place,
}

impl Reader<'_> {
    fn statement(&self, sid: Option<String>) -> Result<Statement, PolicyError> {
        // A role's own has no resource but the role.
        const OF_ROLE: [&str; 6] =
            ["Sid", "Effect", "Principal", "NotPrincipal", "Action", "Condition"];
        const ELEMENTS: [&str; 9] = [
            "Sid",
            "Effect",
            "Principal",
            "NotPrincipal",
            "Action",
            "NotAction",
            "Resource",
            "NotResource",
            "Condition",
        ];
        let known: &[&str] = if *self.kind == Kind::Trust { &OF_ROLE } else { &ELEMENTS };
        check_names(self.elements, known, &self.place)?;
        let effect = self.effect()?;
        let principals = self.principals(effect)?;
        let named = self.actions()?;
        let resources = self.resources()?;
        let actions = named.set();
        if let (Kind::Bucket(bucket), Named::These(entries), Resources::These(patterns)) =
            (self.kind, &named, &resources)
        {
            let applies = |set: ActionSet| {
                set.iter().any(|action| {
                    let level = action.level();
                    matches!(level, Level::Bucket | Level::Object)
                        && patterns.iter().any(|pattern| pattern.may_be(level, bucket))
                })
            };
            if let Some((text, _)) = entries.iter().find(|(_, set)| !applies(*set)) {
                return Err(self.error("Action", Flaw::Inapplicable(text.clone())));
            }
        }
        let conditions = self.conditions(actions)?;
        Ok(Statement { sid, effect, principals, actions, resources, conditions })
    }

    fn error(&self, element: &'static str, flaw: Flaw) -> PolicyError {
        self.place.at(element).error(flaw)
    }

    fn effect(&self) -> Result<Effect, PolicyError> {
        let json =
            find(self.elements, "Effect").ok_or_else(|| self.error("Effect", Flaw::Missing))?;
        match json.text() {
            Some("Allow") => Ok(Effect::Allow),
            Some("Deny") => Ok(Effect::Deny),
            other => Err(self.error("Effect", Flaw::Effect(other.unwrap_or_default().to_owned()))),
        }
    }

    fn principals(&self, effect: Effect) -> Result<Principals, PolicyError> {
        let these = find(self.elements, "Principal");
        let but = find(self.elements, "NotPrincipal");
        let (element, json) = match (these, but) {
            (None, None) if !self.kind.names_principals() => return Ok(Principals::Holder),
            (Some(json), None) => ("Principal", json),
            (None, Some(json)) => ("NotPrincipal", json),
            _ => return Err(self.error("Principal", Flaw::OneOf("Principal"))),
        };
        if !self.kind.names_principals() {
            return Err(self.error(element, Flaw::NamesPrincipal));
        }
        let roles = *self.kind == Kind::Trust;
        let named = Principals::parse(json, roles).map_err(|flaw| self.error(element, flaw))?;
        match (element, effect) {
            ("Principal", _) => Ok(Principals::These(named)),
            (_, Effect::Deny) => Ok(Principals::AllBut(named)),
            (_, Effect::Allow) => Err(self.error(element, Flaw::NotPrincipalAllows)),
        }
    }

    /// The texts of an element or of its negation, of which exactly one is there.
    fn texts(
        &self,
        name: &'static str,
        not: &'static str,
    ) -> Result<(&'static str, Vec<&str>), PolicyError> {
        let (element, json) = match (find(self.elements, name), find(self.elements, not)) {
            (Some(json), None) => (name, json),
            (None, Some(json)) => (not, json),
            _ => return Err(self.error(name, Flaw::OneOf(name))),
        };
        let texts: Option<Vec<&str>> = json.one_or_many().iter().map(Json::text).collect();
        let texts = texts
            .ok_or_else(|| self.error(element, Flaw::Type("a string or a list of strings")))?;
        if texts.is_empty() { Err(self.error(element, Flaw::Empty)) } else { Ok((element, texts)) }
    }

    fn actions(&self) -> Result<Named, PolicyError> {
        let (element, texts) = self.texts("Action", "NotAction")?;
        let mut entries = Vec::with_capacity(texts.len());
        for text in texts {
            let set = action::expand(text).map_err(|flaw| self.error(element, flaw))?;
            // S3 knows its actions. IAM takes what other services may come to have.
            if set.is_empty() && matches!(self.kind, Kind::Bucket(_)) {
                return Err(self.error(element, Flaw::UnknownAction(text.to_owned())));
            }
            let of_roles = !set.is_empty() && set.iter().all(|a| a.level() == Level::Role);
            if *self.kind == Kind::Trust && !of_roles {
                return Err(self.error(element, Flaw::NotOfRoles(text.to_owned())));
            }
            entries.push((text.to_owned(), set));
        }
        Ok(if element == "Action" { Named::These(entries) } else { Named::AllBut(entries) })
    }

    fn resources(&self) -> Result<Resources, PolicyError> {
        if *self.kind == Kind::Trust {
            return Ok(Resources::These(vec![ResourcePattern::Everything]));
        }
        let (element, texts) = self.texts("Resource", "NotResource")?;
        let mut patterns = Vec::with_capacity(texts.len());
        for text in texts {
            let pattern = ResourcePattern::parse(text, self.variables)
                .map_err(|flaw| self.error(element, flaw))?;
            if let Kind::Bucket(bucket) = self.kind
                && !pattern.may_be_in(bucket)
            {
                return Err(self.error(element, Flaw::OtherBucket(text.to_owned())));
            }
            patterns.push(pattern);
        }
        let these = element == "Resource";
        Ok(if these { Resources::These(patterns) } else { Resources::AllBut(patterns) })
    }

    fn conditions(&self, actions: ActionSet) -> Result<Vec<Condition>, PolicyError> {
        let refused = |flaw| self.error("Condition", flaw);
        let json = find(self.elements, "Condition");
        let operators = match json {
            None => return Ok(Vec::new()),
            Some(Json::Object(operators)) => operators,
            Some(_) => return Err(refused(Flaw::Type("an object"))),
        };
        let mut conditions = Vec::new();
        for (at, (name, keys)) in operators.iter().enumerate() {
            if operators[..at].iter().any(|(other, _)| other == name) {
                return Err(refused(Flaw::Duplicate(name.clone())));
            }
            let operator = Operator::find(name);
            let operator = operator.ok_or_else(|| refused(Flaw::Operator(name.clone())))?;
            let Json::Object(keys) = keys else {
                return Err(refused(Flaw::Type("an object of operators, each an object of keys")));
            };
            if keys.is_empty() {
                return Err(refused(Flaw::Empty));
            }
            let mut seen: Vec<KeyRef> = Vec::with_capacity(keys.len());
            for (name, values) in keys {
                let key = self.key(name, actions).map_err(refused)?;
                if seen.contains(&key) {
                    return Err(refused(Flaw::Duplicate(name.clone())));
                }
                seen.push(key.clone());
                let values: Option<Vec<String>> =
                    values.one_or_many().iter().map(Json::scalar).collect();
                let values =
                    values.ok_or_else(|| refused(Flaw::Type("a value or a list of values")))?;
                if values.is_empty() {
                    return Err(refused(Flaw::Empty));
                }
                let condition = Condition::new(operator, key, &values, self.variables);
                conditions.push(condition.map_err(refused)?);
            }
        }
        Ok(conditions)
    }

    /// A condition's key. S3 takes no other service's keys, and none that the statement's
    /// actions never have. Trust policies may ask what web identities' tokens say.
    fn key(&self, name: &str, actions: ActionSet) -> Result<KeyRef, Flaw> {
        let key = KeyRef::find(name).ok_or_else(|| Flaw::Key(name.to_owned()))?;
        if self.kind.names_principals() {
            let of_token = *self.kind == Kind::Trust && key.is_claim();
            if matches!(key, KeyRef::Foreign(_)) && !of_token {
                return Err(Flaw::Key(name.to_owned()));
            }
            if !actions.iter().any(|action| has(action, &key)) {
                return Err(Flaw::InapplicableKey(name.to_owned()));
            }
        }
        Ok(key)
    }
}

/// Actions as they stand in a statement, each entry with what it stands for.
enum Named {
    These(Vec<(String, ActionSet)>),
    AllBut(Vec<(String, ActionSet)>),
}

impl Named {
    fn set(&self) -> ActionSet {
        let union = |entries: &[(String, ActionSet)]| {
            entries.iter().fold(ActionSet::default(), |all, (_, set)| all.union(*set))
        };
        match self {
            Self::These(entries) => union(entries),
            Self::AllBut(entries) => union(entries).complement(),
        }
    }
}

/// Whether requests for the action can have the key.
fn has(action: Action, key: &KeyRef) -> bool {
    let object = action.level() == Level::Object;
    match key {
        KeyRef::Known(key) => match key.scope() {
            Scope::Any => true,
            Scope::Object => object,
            Scope::Version => object && action.name().contains("Version"),
            Scope::Create => action == Action::CreateBucket,
            Scope::Role => action.level() == Level::Role,
            Scope::ListObjects => {
                matches!(action, Action::ListBucket | Action::ListBucketVersions)
            }
            Scope::List => matches!(
                action,
                Action::ListBucket
                    | Action::ListBucketVersions
                    | Action::ListBucketMultipartUploads
            ),
        },
        KeyRef::Tag(TagKey::ExistingObject | TagKey::RequestObject, _) => object,
        KeyRef::Tag(..) => true,
        KeyRef::Foreign(_) => action == Action::AssumeRoleWithWebIdentity,
    }
}
