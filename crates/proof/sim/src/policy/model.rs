//! Access rules as the oracle understands them: looked through one by one, on plain text.

use std::sync::Arc;

use policy::query::Query;
use policy::{Access, Permission, Rule, Who};
use policy::{Attribute, Attributes};

use crate::random::Random;

/// What is known of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Person {
    pub(crate) username: Option<String>,
    /// Of its credential: on which floor it is, and of which teams.
    pub(crate) floor: Option<u8>,
    pub(crate) teams: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whom {
    Everyone,
    Anonymous,
    User(&'static str),
    /// A query holds of it: `attributes.floor`.
    Floor(u8),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelRule {
    whom: Whom,
    permission: Permission,
    /// `FLOOR` and `TEAM` stand for attributes.
    filter: &'static str,
}

/// The rules of one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policy {
    rules: Vec<ModelRule>,
}

const FLOOR: &str = "FLOOR";
const TEAM: &str = "TEAM";

const fn rule(whom: Whom, permission: Permission, filter: &'static str) -> ModelRule {
    ModelRule { whom, permission, filter }
}

const READS: [ModelRule; 10] = [
    rule(Whom::Everyone, Permission::Read, "#"),
    rule(Whom::Everyone, Permission::Read, "t/#"),
    rule(Whom::Everyone, Permission::Read, "t/+/FLOOR"),
    rule(Whom::Everyone, Permission::Read, "t/TEAM/#"),
    rule(Whom::User("u1"), Permission::Read, "t/#"),
    rule(Whom::User("u2"), Permission::Read, "#"),
    rule(Whom::Anonymous, Permission::Read, "t/#"),
    rule(Whom::Floor(1), Permission::Read, "#"),
    rule(Whom::Floor(2), Permission::Read, "t/TEAM/+"),
    rule(Whom::Everyone, Permission::Read, "w/#"),
];

const WRITES: [ModelRule; 7] = [
    rule(Whom::Everyone, Permission::Write, "#"),
    rule(Whom::Everyone, Permission::Write, "#"),
    rule(Whom::Everyone, Permission::Write, "t/+/FLOOR"),
    rule(Whom::User("u1"), Permission::Write, "t/#"),
    rule(Whom::Floor(0), Permission::Write, "#"),
    rule(Whom::Everyone, Permission::Write, "r/#"),
    rule(Whom::Everyone, Permission::Write, "w/#"),
];

const DENIALS: [ModelRule; 6] = [
    rule(Whom::Floor(2), Permission::Deny, "t/+/1"),
    rule(Whom::User("u2"), Permission::Deny, "t/0/#"),
    rule(Whom::Everyone, Permission::Deny, "t/+/FLOOR"),
    rule(Whom::Everyone, Permission::Deny, "t/TEAM/0"),
    rule(Whom::Floor(0), Permission::Deny, "w/#"),
    rule(Whom::Anonymous, Permission::Deny, "r/1"),
];

/// The shared group is everybody's: what it is given has to reach somebody.
const OF_THE_GROUP: ModelRule = rule(Whom::Everyone, Permission::ReadWrite, "g/#");

impl Policy {
    /// Everybody may do everything.
    pub(crate) fn open() -> Self {
        Self { rules: vec![rule(Whom::Everyone, Permission::ReadWrite, "#")] }
    }

    pub(crate) fn choose(random: &mut Random) -> Self {
        let mut rules = vec![OF_THE_GROUP];
        for _ in 0..1 + random.below(3) {
            rules.push(READS[random.below(READS.len())]);
        }
        for _ in 0..1 + random.below(3) {
            rules.push(WRITES[random.below(WRITES.len())]);
        }
        for _ in 0..[0, 0, 1, 2][random.below(4)] {
            rules.push(DENIALS[random.below(DENIALS.len())]);
        }
        Self { rules }
    }

    /// As the broker knows them.
    pub(crate) fn rules(&self) -> Vec<Rule> {
        self.rules.iter().map(ModelRule::for_broker).collect()
    }

    pub(crate) fn may_receive(&self, person: &Person, topic: &str) -> bool {
        self.allows(person, Permission::Read, topic)
    }

    pub(crate) fn may_publish(&self, person: &Person, topic: &str) -> bool {
        self.allows(person, Permission::Write, topic)
    }

    fn allows(&self, person: &Person, wanted: Permission, topic: &str) -> bool {
        let of_topic = |rule: &&ModelRule| rule.holds(person, topic);
        let mut is_granted = false;
        for rule in self.rules.iter().filter(of_topic) {
            match rule.permission {
                Permission::Deny => return false,
                Permission::ReadWrite => is_granted = true,
                permission => is_granted |= permission == wanted,
            }
        }
        is_granted
    }
}

impl ModelRule {
    fn holds(&self, person: &Person, topic: &str) -> bool {
        let is_for = match self.whom {
            Whom::Everyone => true,
            Whom::Anonymous => person.username.is_none(),
            Whom::User(name) => person.username.as_deref() == Some(name),
            Whom::Floor(floor) => person.floor == Some(floor),
        };
        is_for && self.filters(person).iter().any(|filter| topic::matches(filter, topic))
    }

    /// What its filter is for this client: of each of its teams one, and none without any.
    fn filters(&self, person: &Person) -> Vec<String> {
        let floors: Vec<u8> = person.floor.into_iter().collect();
        let by = |name: &str, values: &[u8]| match self.filter.contains(name) {
            true => values.iter().map(|v| self.filter.replace(name, &v.to_string())).collect(),
            false => vec![self.filter.to_owned()],
        };
        if self.filter.contains(TEAM) { by(TEAM, &person.teams) } else { by(FLOOR, &floors) }
    }

    fn for_broker(&self) -> Rule {
        let who = match self.whom {
            Whom::Everyone => Who::Everyone,
            Whom::Anonymous => Who::Anonymous,
            Whom::User(name) => Who::User(name.into()),
            Whom::Floor(floor) => {
                let query = Query::parse(&format!("attributes.floor = '{floor}'"));
                query.map_or(Who::Anonymous, |query| Who::Matching(Arc::new(query)))
            }
        };
        let filter = self.filter.replace(FLOOR, "%{attributes.floor}");
        let filter = filter.replace(TEAM, "%{attributes.teams}");
        Rule { who, permission: self.permission, filter }
    }
}

impl Person {
    /// Whoever has this user name, with the next credential.
    pub(crate) fn choose(username: Option<String>, random: &mut Random) -> Self {
        let floor = random.chance(80).then(|| random.below(3) as u8);
        let teams = (0..random.below(4)).map(|_| random.below(8) as u8).collect();
        Self { username, floor, teams }
    }

    pub(crate) fn attributes(&self) -> Attributes {
        let text = |value: &u8| Attribute::Text(value.to_string().into());
        let floor = self.floor.iter().map(|floor| ("floor".into(), text(floor)));
        let teams = Attribute::List(self.teams.iter().map(text).collect());
        Attributes::new(floor.chain([("teams".into(), teams)]))
    }
}

/// Rules in force, with those that only the world has.
pub(crate) fn compile(rules: &[Rule]) -> Access {
    // All of them are valid: none would let nobody do anything, which is seen at once.
    let access = Access::compile(rules).unwrap_or_default();
    access.heeding_principals(true)
}
