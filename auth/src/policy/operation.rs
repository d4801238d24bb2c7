//! Which actions an operation of S3's API needs, and on what.
//!
//! Source: "Required permissions for Amazon S3 API operations" in S3's guide.

use super::action::Action;

/// An operation of S3's API.
#[derive(Debug, PartialEq, Eq)]
pub struct Operation {
    name: &'static str,
    rows: &'static [Row],
}

/// What about a request asks for further actions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traits {
    /// It names a version of the object.
    pub version: bool,
    /// It names a version of the object that is copied.
    pub source_version: bool,
    /// It sets an ACL.
    pub acl: bool,
    /// It sets the object's tags.
    pub tagging: bool,
    /// It copies the source's tags, and the source has some.
    pub copies_tags: bool,
    /// It sets a retention.
    pub retention: bool,
    /// It sets a legal hold.
    pub legal_hold: bool,
    /// It asks that governance be bypassed.
    pub bypass_governance: bool,
    /// It makes a bucket with object lock.
    pub object_lock: bool,
    /// It makes a bucket with an object ownership.
    pub ownership: bool,
    /// It asks that the bytes go between the node and the client's memory.
    pub rdma: bool,
}

/// Something that must be allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// The action.
    pub action: Action,
    /// What it is done to.
    pub on: On,
}

/// What an action is done to, of what an operation speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    /// The tenant: [`Resource::account`](super::Resource::account).
    Account,
    /// The bucket.
    Bucket,
    /// The object.
    Object,
    /// The object that is copied.
    Source,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Row {
    when: When,
    need: Need,
}

/// Which requests an action is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    Always,
    NoVersion,
    Version,
    NoSourceVersion,
    SourceVersion,
    Acl,
    Tagging,
    CopiesTags,
    CopiesTagsNoVersion,
    CopiesTagsVersion,
    Retention,
    LegalHold,
    Bypass,
    ObjectLock,
    Ownership,
    Rdma,
}

impl When {
    const fn holds(self, traits: &Traits) -> bool {
        match self {
            Self::Always => true,
            Self::NoVersion => !traits.version,
            Self::Version => traits.version,
            Self::NoSourceVersion => !traits.source_version,
            Self::SourceVersion => traits.source_version,
            Self::Acl => traits.acl,
            Self::Tagging => traits.tagging,
            Self::CopiesTags => traits.copies_tags,
            Self::CopiesTagsNoVersion => traits.copies_tags && !traits.source_version,
            Self::CopiesTagsVersion => traits.copies_tags && traits.source_version,
            Self::Retention => traits.retention,
            Self::LegalHold => traits.legal_hold,
            Self::Bypass => traits.bypass_governance,
            Self::ObjectLock => traits.object_lock,
            Self::Ownership => traits.ownership,
            Self::Rdma => traits.rdma,
        }
    }

    /// The condition in words, empty for always.
    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::Always => "",
            Self::NoVersion => "without a version",
            Self::Version => "with a version",
            Self::NoSourceVersion => "without a source version",
            Self::SourceVersion => "with a source version",
            Self::Acl => "with an ACL",
            Self::Tagging => "with tags",
            Self::CopiesTags => "copying tags",
            Self::CopiesTagsNoVersion => "copying tags, without a source version",
            Self::CopiesTagsVersion => "copying tags, with a source version",
            Self::Retention => "with a retention",
            Self::LegalHold => "with a legal hold",
            Self::Bypass => "bypassing governance",
            Self::ObjectLock => "with object lock",
            Self::Ownership => "with an object ownership",
            Self::Rdma => "with an RDMA token",
        }
    }
}

impl Operation {
    /// All of them.
    pub const ALL: &'static [Self] = OPERATIONS;

    /// The operation with this name, such as `GetObject`.
    pub fn find(name: &str) -> Option<&'static Self> {
        OPERATIONS.iter().find(|operation| operation.name == name)
    }

    /// The name, as S3's API has it.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// What must be allowed for a request with these traits; all of it.
    pub fn needs(&self, traits: Traits) -> impl Iterator<Item = Need> {
        self.rows.iter().filter(move |row| row.when.holds(&traits)).map(|row| row.need)
    }

    /// Everything that it may need, with the requests that do.
    pub(super) fn rows(&self) -> impl Iterator<Item = (When, Need)> {
        self.rows.iter().map(|row| (row.when, row.need))
    }
}

macro_rules! operations {
    ($($name:ident { $($when:ident $action:ident $on:ident,)+ })+) => {
        const OPERATIONS: &[Operation] = &[$(
            Operation {
                name: stringify!($name),
                rows: &[$(Row {
                    when: When::$when,
                    need: Need { action: Action::$action, on: On::$on },
                },)+],
            },
        )+];
    };
}

operations! {
    AbortMultipartUpload { Always AbortMultipartUpload Object, }
    CompleteMultipartUpload { Always PutObject Object, }
    CopyObject {
        NoSourceVersion GetObject Source,
        SourceVersion GetObjectVersion Source,
        CopiesTagsNoVersion GetObjectTagging Source,
        CopiesTagsVersion GetObjectVersionTagging Source,
        Always PutObject Object,
        Acl PutObjectAcl Object,
        Tagging PutObjectTagging Object,
        CopiesTags PutObjectTagging Object,
        Retention PutObjectRetention Object,
        LegalHold PutObjectLegalHold Object,
    }
    CreateBucket {
        Always CreateBucket Bucket,
        Acl PutBucketAcl Bucket,
        ObjectLock PutBucketObjectLockConfiguration Bucket,
        ObjectLock PutBucketVersioning Bucket,
        Ownership PutBucketOwnershipControls Bucket,
    }
    CreateMultipartUpload {
        Always PutObject Object,
        Acl PutObjectAcl Object,
        Tagging PutObjectTagging Object,
        Retention PutObjectRetention Object,
        LegalHold PutObjectLegalHold Object,
    }
    DeleteBucket { Always DeleteBucket Bucket, }
    DeleteBucketAnalyticsConfiguration { Always PutAnalyticsConfiguration Bucket, }
    DeleteBucketCors { Always PutBucketCors Bucket, }
    DeleteBucketEncryption { Always PutEncryptionConfiguration Bucket, }
    DeleteBucketIntelligentTieringConfiguration { Always PutIntelligentTieringConfiguration Bucket, }
    DeleteBucketInventoryConfiguration { Always PutInventoryConfiguration Bucket, }
    DeleteBucketLifecycle { Always PutLifecycleConfiguration Bucket, }
    DeleteBucketMetricsConfiguration { Always PutMetricsConfiguration Bucket, }
    DeleteBucketOwnershipControls { Always PutBucketOwnershipControls Bucket, }
    DeleteBucketPolicy { Always DeleteBucketPolicy Bucket, }
    DeleteBucketReplication { Always PutReplicationConfiguration Bucket, }
    DeleteBucketTagging { Always PutBucketTagging Bucket, }
    DeleteBucketWebsite { Always DeleteBucketWebsite Bucket, }
    DeleteObject {
        NoVersion DeleteObject Object,
        Version DeleteObjectVersion Object,
        Bypass BypassGovernanceRetention Object,
    }
    DeleteObjects {
        NoVersion DeleteObject Object,
        Version DeleteObjectVersion Object,
        Bypass BypassGovernanceRetention Object,
    }
    DeleteObjectTagging {
        NoVersion DeleteObjectTagging Object,
        Version DeleteObjectVersionTagging Object,
    }
    DeletePublicAccessBlock { Always PutBucketPublicAccessBlock Bucket, }
    GetBucketAccelerateConfiguration { Always GetAccelerateConfiguration Bucket, }
    GetBucketAcl { Always GetBucketAcl Bucket, }
    GetBucketAnalyticsConfiguration { Always GetAnalyticsConfiguration Bucket, }
    GetBucketCors { Always GetBucketCors Bucket, }
    GetBucketEncryption { Always GetEncryptionConfiguration Bucket, }
    GetBucketIntelligentTieringConfiguration { Always GetIntelligentTieringConfiguration Bucket, }
    GetBucketInventoryConfiguration { Always GetInventoryConfiguration Bucket, }
    GetBucketLifecycleConfiguration { Always GetLifecycleConfiguration Bucket, }
    GetBucketLocation { Always GetBucketLocation Bucket, }
    GetBucketLogging { Always GetBucketLogging Bucket, }
    GetBucketMetricsConfiguration { Always GetMetricsConfiguration Bucket, }
    GetBucketNotificationConfiguration { Always GetBucketNotification Bucket, }
    GetBucketOwnershipControls { Always GetBucketOwnershipControls Bucket, }
    GetBucketPolicy { Always GetBucketPolicy Bucket, }
    GetBucketPolicyStatus { Always GetBucketPolicyStatus Bucket, }
    GetBucketReplication { Always GetReplicationConfiguration Bucket, }
    GetBucketRequestPayment { Always GetBucketRequestPayment Bucket, }
    GetBucketTagging { Always GetBucketTagging Bucket, }
    GetBucketVersioning { Always GetBucketVersioning Bucket, }
    GetBucketWebsite { Always GetBucketWebsite Bucket, }
    GetObject {
        NoVersion GetObject Object,
        Version GetObjectVersion Object,
        Rdma RdmaGet Object,
    }
    GetObjectAcl {
        NoVersion GetObjectAcl Object,
        Version GetObjectVersionAcl Object,
    }
    GetObjectAttributes {
        NoVersion GetObject Object,
        NoVersion GetObjectAttributes Object,
        Version GetObjectVersion Object,
        Version GetObjectVersionAttributes Object,
    }
    GetObjectLegalHold { Always GetObjectLegalHold Object, }
    GetObjectLockConfiguration { Always GetBucketObjectLockConfiguration Bucket, }
    GetObjectRetention { Always GetObjectRetention Object, }
    GetObjectTagging {
        NoVersion GetObjectTagging Object,
        Version GetObjectVersionTagging Object,
    }
    GetObjectTorrent { Always GetObjectTorrent Object, }
    GetPublicAccessBlock { Always GetBucketPublicAccessBlock Bucket, }
    HeadBucket { Always ListBucket Bucket, }
    HeadObject {
        NoVersion GetObject Object,
        Version GetObjectVersion Object,
    }
    ListBucketAnalyticsConfigurations { Always GetAnalyticsConfiguration Bucket, }
    ListBucketIntelligentTieringConfigurations { Always GetIntelligentTieringConfiguration Bucket, }
    ListBucketInventoryConfigurations { Always GetInventoryConfiguration Bucket, }
    ListBucketMetricsConfigurations { Always GetMetricsConfiguration Bucket, }
    ListBuckets { Always ListAllMyBuckets Account, }
    ListMultipartUploads { Always ListBucketMultipartUploads Bucket, }
    ListObjects { Always ListBucket Bucket, }
    ListObjectsV2 { Always ListBucket Bucket, }
    ListObjectVersions { Always ListBucketVersions Bucket, }
    ListParts { Always ListMultipartUploadParts Object, }
    PostObject {
        Always PutObject Object,
        Acl PutObjectAcl Object,
        Tagging PutObjectTagging Object,
        Retention PutObjectRetention Object,
        LegalHold PutObjectLegalHold Object,
    }
    PutBucketAccelerateConfiguration { Always PutAccelerateConfiguration Bucket, }
    PutBucketAcl { Always PutBucketAcl Bucket, }
    PutBucketAnalyticsConfiguration { Always PutAnalyticsConfiguration Bucket, }
    PutBucketCors { Always PutBucketCors Bucket, }
    PutBucketEncryption { Always PutEncryptionConfiguration Bucket, }
    PutBucketIntelligentTieringConfiguration { Always PutIntelligentTieringConfiguration Bucket, }
    PutBucketInventoryConfiguration { Always PutInventoryConfiguration Bucket, }
    PutBucketLifecycleConfiguration { Always PutLifecycleConfiguration Bucket, }
    PutBucketLogging { Always PutBucketLogging Bucket, }
    PutBucketMetricsConfiguration { Always PutMetricsConfiguration Bucket, }
    PutBucketNotificationConfiguration { Always PutBucketNotification Bucket, }
    PutBucketOwnershipControls { Always PutBucketOwnershipControls Bucket, }
    PutBucketPolicy { Always PutBucketPolicy Bucket, }
    PutBucketReplication { Always PutReplicationConfiguration Bucket, }
    PutBucketRequestPayment { Always PutBucketRequestPayment Bucket, }
    PutBucketTagging { Always PutBucketTagging Bucket, }
    PutBucketVersioning { Always PutBucketVersioning Bucket, }
    PutBucketWebsite { Always PutBucketWebsite Bucket, }
    PutObject {
        Always PutObject Object,
        Acl PutObjectAcl Object,
        Tagging PutObjectTagging Object,
        Retention PutObjectRetention Object,
        LegalHold PutObjectLegalHold Object,
        Rdma RdmaPut Object,
    }
    PutObjectAcl {
        NoVersion PutObjectAcl Object,
        Version PutObjectVersionAcl Object,
    }
    PutObjectLegalHold { Always PutObjectLegalHold Object, }
    PutObjectLockConfiguration { Always PutBucketObjectLockConfiguration Bucket, }
    PutObjectRetention {
        Always PutObjectRetention Object,
        Bypass BypassGovernanceRetention Object,
    }
    PutObjectTagging {
        NoVersion PutObjectTagging Object,
        Version PutObjectVersionTagging Object,
    }
    PutPublicAccessBlock { Always PutBucketPublicAccessBlock Bucket, }
    RestoreObject { Always RestoreObject Object, }
    SelectObjectContent { Always GetObject Object, }
    UploadPart {
        Always PutObject Object,
        Rdma RdmaPut Object,
    }
    UploadPartCopy {
        NoSourceVersion GetObject Source,
        SourceVersion GetObjectVersion Source,
        Always PutObject Object,
    }
}

#[cfg(test)]
mod tests {
    use super::super::action::Level;
    use super::*;

    fn needs(name: &str, traits: Traits) -> Vec<(&'static str, On)> {
        let operation = Operation::find(name).expect("an operation");
        operation.needs(traits).map(|need| (need.action.name(), need.on)).collect()
    }

    #[test]
    fn versions_take_the_place_of_the_plain_action() {
        assert_eq!(needs("GetObject", Traits::default()), [("s3:GetObject", On::Object)]);
        let version = Traits { version: true, ..Traits::default() };
        assert_eq!(needs("GetObject", version), [("s3:GetObjectVersion", On::Object)]);
        let bypass = Traits { bypass_governance: true, ..version };
        assert_eq!(
            needs("DeleteObject", bypass),
            [("s3:DeleteObjectVersion", On::Object), ("s3:BypassGovernanceRetention", On::Object)]
        );
    }

    #[test]
    fn a_copy_reads_one_object_and_writes_another() {
        let traits = Traits { source_version: true, tagging: true, acl: true, ..Traits::default() };
        assert_eq!(
            needs("CopyObject", traits),
            [
                ("s3:GetObjectVersion", On::Source),
                ("s3:PutObject", On::Object),
                ("s3:PutObjectAcl", On::Object),
                ("s3:PutObjectTagging", On::Object)
            ]
        );
    }

    #[test]
    fn rdma_is_a_gate_beside_the_action() {
        let rdma = Traits { rdma: true, ..Traits::default() };
        assert_eq!(
            needs("UploadPart", rdma),
            [("s3:PutObject", On::Object), ("keyway:RdmaPut", On::Object)]
        );
    }

    /// Goal: the table is right about itself. Whatever the request, something that is no gate
    /// must be allowed; and actions are done to what they are done to.
    #[test]
    fn every_operation_needs_something_that_fits() {
        for operation in Operation::ALL {
            for version in [false, true] {
                let traits = Traits { version, source_version: version, ..Traits::default() };
                let firm = operation.needs(traits).filter(|need| !need.action.is_gate()).count();
                assert!(firm > 0, "{} needs nothing", operation.name());
            }
            for (_, need) in operation.rows() {
                let fits = match need.action.level() {
                    Level::Account => need.on == On::Account,
                    Level::Bucket => need.on == On::Bucket,
                    Level::Object => matches!(need.on, On::Object | On::Source),
                    // None of S3's operations is done to a role.
                    Level::Role => false,
                };
                assert!(fits, "{}: {} on {:?}", operation.name(), need.action, need.on);
            }
        }
    }
}
