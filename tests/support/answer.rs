//! Responses and their rate limit headers.

use std::fmt::Debug;

use bytes::Buf;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt;
use sfv::{ListEntry, Parser};
use tower::{Service, ServiceExt};

/// A response with its whole body.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: String,
}

/// A member of a `RateLimit` or `RateLimit-Policy` field: a name, and integers by their keys.
#[derive(Debug, Eq, PartialEq)]
pub struct Member {
    pub name: String,
    pub parameters: Vec<(String, i64)>,
}

/// Sends `request` to a clone of `service` when it is ready. Clones share their limits.
pub async fn ask<S, B, R>(service: &S, request: Request<B>) -> Answer
where
    S: Service<Request<B>, Response = Response<R>, Error: Debug> + Clone,
    R: Body<Error: Debug>,
{
    Answer::of(service.clone().oneshot(request).await.expect("the service responds")).await
}

/// Sends requests in turn, and returns the statuses of the responses.
pub async fn statuses<S, B, R>(service: &S, requests: impl IntoIterator<Item = Request<B>>) -> Vec<u16>
where
    S: Service<Request<B>, Response = Response<R>, Error: Debug> + Clone,
    R: Body<Error: Debug>,
{
    let mut statuses = Vec::new();
    for request in requests {
        statuses.push(ask(service, request).await.status.as_u16());
    }
    statuses
}

impl Answer {
    pub async fn of<B: Body<Error: Debug>>(response: Response<B>) -> Self {
        let (head, body) = response.into_parts();
        let mut body = body.collect().await.expect("the body arrives").aggregate();
        let body = body.copy_to_bytes(body.remaining());
        let body = String::from_utf8(body.into()).expect("the body is text");
        Self { status: head.status, headers: head.headers, body }
    }

    /// Returns the header called `name`, which must not be repeated.
    #[track_caller]
    pub fn header(&self, name: &str) -> Option<&str> {
        let values = self.all(name);
        assert!(values.len() <= 1, "{name} was sent {} times: {values:?}", values.len());
        values.first().copied()
    }

    /// Returns all headers called `name`.
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.headers.get_all(name).iter().map(|value| value.to_str().expect("an ASCII value")).collect()
    }

    /// Returns the members of `RateLimit`.
    pub fn standings(&self) -> Vec<Member> {
        self.members("ratelimit")
    }

    /// Returns the members of `RateLimit-Policy`.
    pub fn policies(&self) -> Vec<Member> {
        self.members("ratelimit-policy")
    }

    /// Returns the remaining tokens of the only limit.
    #[track_caller]
    pub fn remaining(&self) -> i64 {
        match self.standings().as_slice() {
            [only] => only.get("r").expect("r is required"),
            standings => panic!("there are {} standings: {standings:?}", standings.len()),
        }
    }

    /// Returns the remaining tokens of the limit called `name`, which must not be repeated.
    #[track_caller]
    pub fn remaining_of(&self, name: &str) -> i64 {
        let standings = self.standings();
        let mut named = standings.iter().filter(|standing| standing.name == name);
        match (named.next(), named.next()) {
            (Some(only), None) => only.get("r").expect("r is required"),
            _ => panic!("{name} is not reported once: {standings:?}"),
        }
    }

    #[track_caller]
    pub fn is_denied(&self) -> bool {
        match self.status {
            StatusCode::OK => false,
            StatusCode::TOO_MANY_REQUESTS => true,
            status => panic!("{status}: {}", self.body),
        }
    }

    fn members(&self, field: &str) -> Vec<Member> {
        // The lines of a list are joined (RFC 9651, section 4.2).
        let text = self.all(field).join(", ");
        let list: sfv::List = Parser::new(&text).parse().expect("a structured field");
        list.into_iter()
            .map(|entry| match entry {
                ListEntry::Item(item) => Member {
                    name: item.bare_item.as_string().expect("a name is a string").as_str().to_owned(),
                    parameters: item
                        .params
                        .iter()
                        .map(|(key, value)| (key.as_str().to_owned(), value.as_integer().expect("an integer").into()))
                        .collect(),
                },
                ListEntry::InnerList(list) => panic!("an inner list: {list:?}"),
            })
            .collect()
    }
}

impl Member {
    pub fn new(name: &str, parameters: &[(&str, i64)]) -> Self {
        let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect();
        Self { name: name.to_owned(), parameters }
    }

    pub fn get(&self, key: &str) -> Option<i64> {
        self.parameters.iter().find(|(known, _)| known == key).map(|(_, value)| *value)
    }
}
