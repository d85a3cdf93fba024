//! The messages of the kinds served here, and of everything below them: the field numbers of
//! Kubernetes 1.36, the fields' JSON names, and what becomes of a zero. Newer fields are added at
//! the end of their message; a number never changes its meaning.
//!
//! A test walks this table beside the schema of each kind: neither has a field the other lacks.

// Messages are called what Kubernetes calls them, so that both can be read side by side.
#![allow(non_upper_case_globals)]

use super::message::{Field, Item, Message, Shape, item, messages, name, shape};

/// The message of a kind, if it has one.
pub(super) fn of(kind: &str) -> Option<&'static Message> {
    Some(match kind {
        "Pod" => &Pod,
        "Node" => &Node,
        "Namespace" => &Namespace,
        "Event" => &Event,
        "ConfigMap" => &ConfigMap,
        "Secret" => &Secret,
        "Binding" => &Binding,
        "DaemonSet" => &DaemonSet,
        "Lease" => &Lease,
        "Role" => &Role,
        "ClusterRole" => &ClusterRole,
        "RoleBinding" => &RoleBinding,
        // The same message in another scope.
        "ClusterRoleBinding" => &RoleBinding,
        "SelfSubjectReview" => &SelfSubjectReview,
        "SelfSubjectAccessReview" => &SelfSubjectAccessReview,
        "SelfSubjectRulesReview" => &SelfSubjectRulesReview,
        "SubjectAccessReview" => &SubjectAccessReview,
        "LocalSubjectAccessReview" => &SubjectAccessReview,
        "DeleteOptions" => &DeleteOptions,
        _ => return None,
    })
}

messages! {
    Pod { 1 metadata ObjectMeta, 2 spec PodSpec, 3 status PodStatus }
    Node { 1 metadata ObjectMeta, 2 spec NodeSpec, 3 status NodeStatus }
    Namespace { 1 metadata ObjectMeta, 2 spec NamespaceSpec, 3 status NamespaceStatus }
    Event {
        1 metadata ObjectMeta, 2 involvedObject ObjectReference, 3 reason string, 4 message string,
        5 source EventSource, 6 firstTimestamp Time, 7 lastTimestamp Time, 8 count int32,
        9 type string, 10 eventTime MicroTime, 11 series EventSeries, 12 action string,
        13 related ObjectReference, 14 reportingComponent String, 15 reportingInstance String,
    }
    ConfigMap { 1 metadata ObjectMeta, 2 data {string}, 3 binaryData {bytes}, 4 immutable Bool }
    Secret {
        1 metadata ObjectMeta, 2 data {bytes}, 3 type string, 4 stringData {string},
        5 immutable Bool,
    }
    Binding { 1 metadata ObjectMeta, 2 target ObjectReference }
    DaemonSet { 1 metadata ObjectMeta, 2 spec DaemonSetSpec, 3 status DaemonSetStatus }
    Lease { 1 metadata ObjectMeta, 2 spec LeaseSpec }
    Role { 1 metadata ObjectMeta, 2 rules [PolicyRule] }
    ClusterRole {
        1 metadata ObjectMeta, 2 rules [PolicyRule], 3 aggregationRule AggregationRule,
    }
    RoleBinding { 1 metadata ObjectMeta, 2 subjects [Subject], 3 roleRef RoleRef }
    SelfSubjectReview { 1 metadata ObjectMeta, 2 status SelfSubjectReviewStatus }
    SelfSubjectAccessReview {
        1 metadata ObjectMeta, 2 spec SelfSubjectAccessReviewSpec,
        3 status SubjectAccessReviewStatus,
    }
    SelfSubjectRulesReview {
        1 metadata ObjectMeta, 2 spec SelfSubjectRulesReviewSpec, 3 status SubjectRulesReviewStatus,
    }
    SubjectAccessReview {
        1 metadata ObjectMeta, 2 spec SubjectAccessReviewSpec, 3 status SubjectAccessReviewStatus,
    }
    DeleteOptions {
        1 gracePeriodSeconds Int64, 2 preconditions Preconditions, 3 orphanDependents Bool,
        4 propagationPolicy String, 5 dryRun [string],
        6 ignoreStoreReadErrorWithClusterBreakingPotential Bool,
    }
    AWSElasticBlockStoreVolumeSource {
        1 volumeID String, 2 fsType string, 3 partition int32, 4 readOnly bool,
    }
    Affinity {
        1 nodeAffinity NodeAffinity, 2 podAffinity PodAffinity, 3 podAntiAffinity PodAntiAffinity,
    }
    AggregationRule { 1 clusterRoleSelectors [LabelSelector] }
    AppArmorProfile { 1 type String, 2 localhostProfile String }
    AttachedVolume { 1 name String, 2 devicePath String }
    AzureDiskVolumeSource {
        1 diskName String, 2 diskURI String, 3 cachingMode String, 4 fsType String, 5 readOnly Bool,
        6 kind String,
    }
    AzureFileVolumeSource { 1 secretName String, 2 shareName String, 3 readOnly bool }
    CSIVolumeSource {
        1 driver String, 2 readOnly Bool, 3 fsType String, 4 volumeAttributes {string},
        5 nodePublishSecretRef LocalObjectReference,
    }
    Capabilities { 1 add [string], 2 drop [string] }
    CephFSVolumeSource {
        1 monitors [string], 2 path string, 3 user string, 4 secretFile string,
        5 secretRef LocalObjectReference, 6 readOnly bool,
    }
    CinderVolumeSource {
        1 volumeID String, 2 fsType string, 3 readOnly bool, 4 secretRef LocalObjectReference,
    }
    ClusterTrustBundleProjection {
        1 name String, 2 signerName String, 3 labelSelector LabelSelector, 4 path String,
        5 optional Bool,
    }
    ConfigMapEnvSource { 1 _ LocalObjectReference, 2 optional Bool }
    ConfigMapKeySelector { 1 _ LocalObjectReference, 2 key String, 3 optional Bool }
    ConfigMapNodeConfigSource {
        1 namespace String, 2 name String, 3 uid string, 4 resourceVersion string,
        5 kubeletConfigKey String,
    }
    ConfigMapProjection { 1 _ LocalObjectReference, 2 items [KeyToPath], 4 optional Bool }
    ConfigMapVolumeSource {
        1 _ LocalObjectReference, 2 items [KeyToPath], 3 defaultMode Int32, 4 optional Bool,
    }
    Container {
        1 name String, 2 image string, 3 command [string], 4 args [string], 5 workingDir string,
        6 ports [ContainerPort], 7 env [EnvVar], 8 resources ResourceRequirements,
        9 volumeMounts [VolumeMount], 10 livenessProbe Probe, 11 readinessProbe Probe,
        12 lifecycle Lifecycle, 13 terminationMessagePath string, 14 imagePullPolicy string,
        15 securityContext SecurityContext, 16 stdin bool, 17 stdinOnce bool, 18 tty bool,
        19 envFrom [EnvFromSource], 20 terminationMessagePolicy string,
        21 volumeDevices [VolumeDevice], 22 startupProbe Probe,
        23 resizePolicy [ContainerResizePolicy], 24 restartPolicy String,
        25 restartPolicyRules [ContainerRestartRule],
    }
    ContainerExtendedResourceRequest {
        1 containerName String, 2 resourceName String, 3 requestName String,
    }
    ContainerImage { 1 names [string], 2 sizeBytes int64 }
    ContainerPort {
        1 name string, 2 hostPort int32, 3 containerPort Int32, 4 protocol string, 5 hostIP string,
    }
    ContainerResizePolicy { 1 resourceName String, 2 restartPolicy String }
    ContainerRestartRule { 1 action string, 2 exitCodes ContainerRestartRuleOnExitCodes }
    ContainerRestartRuleOnExitCodes { 1 operator string, 2 values [int32] }
    ContainerState {
        1 waiting ContainerStateWaiting, 2 running ContainerStateRunning,
        3 terminated ContainerStateTerminated,
    }
    ContainerStateRunning { 1 startedAt Time }
    ContainerStateTerminated {
        1 exitCode Int32, 2 signal int32, 3 reason string, 4 message string, 5 startedAt Time,
        6 finishedAt Time, 7 containerID string,
    }
    ContainerStateWaiting { 1 reason string, 2 message string }
    ContainerStatus {
        1 name String, 2 state ContainerState, 3 lastState ContainerState, 4 ready Bool,
        5 restartCount Int32, 6 image String, 7 imageID String, 8 containerID string,
        9 started Bool, 10 allocatedResources {Quantity}, 11 resources ResourceRequirements,
        12 volumeMounts [VolumeMountStatus], 13 user ContainerUser,
        14 allocatedResourcesStatus [ResourceStatus], 15 stopSignal String,
    }
    ContainerUser { 1 linux LinuxContainerUser }
    DaemonEndpoint { 1 Port Int32 }
    DaemonSetCondition {
        1 type String, 2 status String, 3 lastTransitionTime Time, 4 reason string,
        5 message string,
    }
    DaemonSetSpec {
        1 selector LabelSelector, 2 template PodTemplateSpec,
        3 updateStrategy DaemonSetUpdateStrategy, 4 minReadySeconds int32,
        6 revisionHistoryLimit Int32,
    }
    DaemonSetStatus {
        1 currentNumberScheduled Int32, 2 numberMisscheduled Int32, 3 desiredNumberScheduled Int32,
        4 numberReady Int32, 5 observedGeneration int64, 6 updatedNumberScheduled int32,
        7 numberAvailable int32, 8 numberUnavailable int32, 9 collisionCount Int32,
        10 conditions [DaemonSetCondition],
    }
    DaemonSetUpdateStrategy { 1 type string, 2 rollingUpdate RollingUpdateDaemonSet }
    DownwardAPIProjection { 1 items [DownwardAPIVolumeFile] }
    DownwardAPIVolumeFile {
        1 path String, 2 fieldRef ObjectFieldSelector, 3 resourceFieldRef ResourceFieldSelector,
        4 mode Int32,
    }
    DownwardAPIVolumeSource { 1 items [DownwardAPIVolumeFile], 2 defaultMode Int32 }
    EmptyDirVolumeSource { 1 medium string, 2 sizeLimit Quantity }
    EnvFromSource {
        1 prefix string, 2 configMapRef ConfigMapEnvSource, 3 secretRef SecretEnvSource,
    }
    EnvVar { 1 name String, 2 value string, 3 valueFrom EnvVarSource }
    EnvVarSource {
        1 fieldRef ObjectFieldSelector, 2 resourceFieldRef ResourceFieldSelector,
        3 configMapKeyRef ConfigMapKeySelector, 4 secretKeyRef SecretKeySelector,
        5 fileKeyRef FileKeySelector,
    }
    EphemeralContainer { 1 _ EphemeralContainerCommon, 2 targetContainerName string }
    EphemeralContainerCommon {
        1 name String, 2 image string, 3 command [string], 4 args [string], 5 workingDir string,
        6 ports [ContainerPort], 7 env [EnvVar], 8 resources ResourceRequirements,
        9 volumeMounts [VolumeMount], 10 livenessProbe Probe, 11 readinessProbe Probe,
        12 lifecycle Lifecycle, 13 terminationMessagePath string, 14 imagePullPolicy string,
        15 securityContext SecurityContext, 16 stdin bool, 17 stdinOnce bool, 18 tty bool,
        19 envFrom [EnvFromSource], 20 terminationMessagePolicy string,
        21 volumeDevices [VolumeDevice], 22 startupProbe Probe,
        23 resizePolicy [ContainerResizePolicy], 24 restartPolicy String,
        25 restartPolicyRules [ContainerRestartRule],
    }
    EphemeralVolumeSource { 1 volumeClaimTemplate PersistentVolumeClaimTemplate }
    EventSeries { 1 count int32, 2 lastObservedTime MicroTime }
    EventSource { 1 component string, 2 host string }
    ExecAction { 1 command [string] }
    FCVolumeSource {
        1 targetWWNs [string], 2 lun Int32, 3 fsType string, 4 readOnly bool, 5 wwids [string],
    }
    FieldSelectorAttributes { 1 rawSelector string, 2 requirements [FieldSelectorRequirement] }
    FieldSelectorRequirement { 1 key String, 2 operator String, 3 values [string] }
    FileKeySelector { 1 volumeName String, 2 path String, 3 key String, 4 optional Bool }
    FlexVolumeSource {
        1 driver String, 2 fsType string, 3 secretRef LocalObjectReference, 4 readOnly bool,
        5 options {string},
    }
    FlockerVolumeSource { 1 datasetName string, 2 datasetUUID string }
    GCEPersistentDiskVolumeSource {
        1 pdName String, 2 fsType string, 3 partition int32, 4 readOnly bool,
    }
    GRPCAction { 1 port Int32, 2 service String }
    GitRepoVolumeSource { 1 repository String, 2 revision string, 3 directory string }
    GlusterfsVolumeSource { 1 endpoints String, 2 path String, 3 readOnly bool }
    HTTPGetAction {
        1 path string, 2 port IntOrString, 3 host string, 4 scheme string,
        5 httpHeaders [HTTPHeader],
    }
    HTTPHeader { 1 name String, 2 value String }
    HostAlias { 1 ip String, 2 hostnames [string] }
    HostIP { 1 ip String }
    HostPathVolumeSource { 1 path String, 2 type String }
    ISCSIVolumeSource {
        1 targetPortal String, 2 iqn String, 3 lun Int32, 4 iscsiInterface string, 5 fsType string,
        6 readOnly bool, 7 portals [string], 8 chapAuthDiscovery bool,
        10 secretRef LocalObjectReference, 11 chapAuthSession bool, 12 initiatorName String,
    }
    ImageVolumeSource { 1 reference string, 2 pullPolicy string }
    ImageVolumeStatus { 1 imageRef string }
    KeyToPath { 1 key String, 2 path String, 3 mode Int32 }
    LabelSelector { 1 matchLabels {string}, 2 matchExpressions [LabelSelectorRequirement] }
    LabelSelectorAttributes { 1 rawSelector string, 2 requirements [LabelSelectorRequirement] }
    LabelSelectorRequirement { 1 key String, 2 operator String, 3 values [string] }
    LeaseSpec {
        1 holderIdentity String, 2 leaseDurationSeconds Int32, 3 acquireTime MicroTime,
        4 renewTime MicroTime, 5 leaseTransitions Int32, 6 strategy String,
        7 preferredHolder String,
    }
    Lifecycle { 1 postStart LifecycleHandler, 2 preStop LifecycleHandler, 3 stopSignal String }
    LifecycleHandler {
        1 exec ExecAction, 2 httpGet HTTPGetAction, 3 tcpSocket TCPSocketAction,
        4 sleep SleepAction,
    }
    LinuxContainerUser { 1 uid Int64, 2 gid Int64, 3 supplementalGroups [int64] }
    LocalObjectReference { 1 name string }
    ManagedFieldsEntry {
        1 manager string, 2 operation string, 3 apiVersion string, 4 time Time, 6 fieldsType string,
        7 fieldsV1 FieldsV1, 8 subresource string,
    }
    NFSVolumeSource { 1 server String, 2 path String, 3 readOnly bool }
    NamespaceCondition {
        1 type String, 2 status String, 4 lastTransitionTime Time, 5 reason string,
        6 message string,
    }
    NamespaceSpec { 1 finalizers [string] }
    NamespaceStatus { 1 phase string, 2 conditions [NamespaceCondition] }
    NodeAddress { 1 type String, 2 address String }
    NodeAffinity {
        1 requiredDuringSchedulingIgnoredDuringExecution NodeSelector,
        2 preferredDuringSchedulingIgnoredDuringExecution [PreferredSchedulingTerm],
    }
    NodeAllocatableResourceClaimStatus {
        1 resourceClaimName String, 2 containers [string], 3 resources {Quantity},
    }
    NodeCondition {
        1 type String, 2 status String, 3 lastHeartbeatTime Time, 4 lastTransitionTime Time,
        5 reason string, 6 message string,
    }
    NodeConfigSource { 2 configMap ConfigMapNodeConfigSource }
    NodeConfigStatus {
        1 assigned NodeConfigSource, 2 active NodeConfigSource, 3 lastKnownGood NodeConfigSource,
        4 error string,
    }
    NodeDaemonEndpoints { 1 kubeletEndpoint DaemonEndpoint }
    NodeFeatures { 1 supplementalGroupsPolicy Bool }
    NodeRuntimeHandler { 1 name String, 2 features NodeRuntimeHandlerFeatures }
    NodeRuntimeHandlerFeatures { 1 recursiveReadOnlyMounts Bool, 2 userNamespaces Bool }
    NodeSelector { 1 nodeSelectorTerms [NodeSelectorTerm] }
    NodeSelectorRequirement { 1 key String, 2 operator String, 3 values [string] }
    NodeSelectorTerm {
        1 matchExpressions [NodeSelectorRequirement], 2 matchFields [NodeSelectorRequirement],
    }
    NodeSpec {
        1 podCIDR string, 2 externalID string, 3 providerID string, 4 unschedulable bool,
        5 taints [Taint], 6 configSource NodeConfigSource, 7 podCIDRs [string],
    }
    NodeStatus {
        1 capacity {Quantity}, 2 allocatable {Quantity}, 3 phase string,
        4 conditions [NodeCondition], 5 addresses [NodeAddress],
        6 daemonEndpoints NodeDaemonEndpoints, 7 nodeInfo NodeSystemInfo, 8 images [ContainerImage],
        9 volumesInUse [string], 10 volumesAttached [AttachedVolume], 11 config NodeConfigStatus,
        12 runtimeHandlers [NodeRuntimeHandler], 13 features NodeFeatures,
        14 declaredFeatures [string],
    }
    NodeSwapStatus { 1 capacity Int64 }
    NodeSystemInfo {
        1 machineID String, 2 systemUUID String, 3 bootID String, 4 kernelVersion String,
        5 osImage String, 6 containerRuntimeVersion String, 7 kubeletVersion String,
        8 kubeProxyVersion String, 9 operatingSystem String, 10 architecture String,
        11 swap NodeSwapStatus,
    }
    NonResourceAttributes { 1 path string, 2 verb string }
    NonResourceRule { 1 verbs [string], 2 nonResourceURLs [string] }
    ObjectFieldSelector { 1 apiVersion string, 2 fieldPath String }
    ObjectMeta {
        1 name string, 2 generateName string, 3 namespace string, 4 selfLink string, 5 uid string,
        6 resourceVersion string, 7 generation int64, 8 creationTimestamp Time,
        9 deletionTimestamp Time, 10 deletionGracePeriodSeconds Int64, 11 labels {string},
        12 annotations {string}, 13 ownerReferences [OwnerReference], 14 finalizers [string],
        17 managedFields [ManagedFieldsEntry],
    }
    ObjectReference {
        1 kind string, 2 namespace string, 3 name string, 4 uid string, 5 apiVersion string,
        6 resourceVersion string, 7 fieldPath string,
    }
    OwnerReference {
        1 kind String, 3 name String, 4 uid String, 5 apiVersion String, 6 controller Bool,
        7 blockOwnerDeletion Bool,
    }
    PersistentVolumeClaimSpec {
        1 accessModes [string], 2 resources VolumeResourceRequirements, 3 volumeName string,
        4 selector LabelSelector, 5 storageClassName String, 6 volumeMode String,
        7 dataSource TypedLocalObjectReference, 8 dataSourceRef TypedObjectReference,
        9 volumeAttributesClassName String,
    }
    PersistentVolumeClaimTemplate { 1 metadata ObjectMeta, 2 spec PersistentVolumeClaimSpec }
    PersistentVolumeClaimVolumeSource { 1 claimName String, 2 readOnly bool }
    PhotonPersistentDiskVolumeSource { 1 pdID String, 2 fsType string }
    PodAffinity {
        1 requiredDuringSchedulingIgnoredDuringExecution [PodAffinityTerm],
        2 preferredDuringSchedulingIgnoredDuringExecution [WeightedPodAffinityTerm],
    }
    PodAffinityTerm {
        1 labelSelector LabelSelector, 2 namespaces [string], 3 topologyKey String,
        4 namespaceSelector LabelSelector, 5 matchLabelKeys [string], 6 mismatchLabelKeys [string],
    }
    PodAntiAffinity {
        1 requiredDuringSchedulingIgnoredDuringExecution [PodAffinityTerm],
        2 preferredDuringSchedulingIgnoredDuringExecution [WeightedPodAffinityTerm],
    }
    PodCertificateProjection {
        1 signerName string, 2 keyType string, 3 maxExpirationSeconds Int32,
        4 credentialBundlePath string, 5 keyPath string, 6 certificateChainPath string,
        7 userAnnotations {string},
    }
    PodCondition {
        1 type String, 2 status String, 3 lastProbeTime Time, 4 lastTransitionTime Time,
        5 reason string, 6 message string, 7 observedGeneration int64,
    }
    PodDNSConfig { 1 nameservers [string], 2 searches [string], 3 options [PodDNSConfigOption] }
    PodDNSConfigOption { 1 name string, 2 value String }
    PodExtendedResourceClaimStatus {
        1 requestMappings [ContainerExtendedResourceRequest], 2 resourceClaimName String,
    }
    PodIP { 1 ip String }
    PodOS { 1 name String }
    PodReadinessGate { 1 conditionType String }
    PodResourceClaim {
        1 name String, 3 resourceClaimName String, 4 resourceClaimTemplateName String,
    }
    PodResourceClaimStatus { 1 name String, 2 resourceClaimName String }
    PodSchedulingGate { 1 name String }
    PodSchedulingGroup { 1 podGroupName String }
    PodSecurityContext {
        1 seLinuxOptions SELinuxOptions, 2 runAsUser Int64, 3 runAsNonRoot Bool,
        4 supplementalGroups [int64], 5 fsGroup Int64, 6 runAsGroup Int64, 7 sysctls [Sysctl],
        8 windowsOptions WindowsSecurityContextOptions, 9 fsGroupChangePolicy String,
        10 seccompProfile SeccompProfile, 11 appArmorProfile AppArmorProfile,
        12 supplementalGroupsPolicy String, 13 seLinuxChangePolicy String,
    }
    PodSpec {
        1 volumes [Volume], 2 containers [Container], 3 restartPolicy string,
        4 terminationGracePeriodSeconds Int64, 5 activeDeadlineSeconds Int64, 6 dnsPolicy string,
        7 nodeSelector {string}, 8 serviceAccountName string, 9 serviceAccount string,
        10 nodeName string, 11 hostNetwork bool, 12 hostPID bool, 13 hostIPC bool,
        14 securityContext PodSecurityContext, 15 imagePullSecrets [LocalObjectReference],
        16 hostname string, 17 subdomain string, 18 affinity Affinity, 19 schedulerName string,
        20 initContainers [Container], 21 automountServiceAccountToken Bool,
        22 tolerations [Toleration], 23 hostAliases [HostAlias], 24 priorityClassName string,
        25 priority Int32, 26 dnsConfig PodDNSConfig, 27 shareProcessNamespace Bool,
        28 readinessGates [PodReadinessGate], 29 runtimeClassName String,
        30 enableServiceLinks Bool, 31 preemptionPolicy String, 32 overhead {Quantity},
        33 topologySpreadConstraints [TopologySpreadConstraint],
        34 ephemeralContainers [EphemeralContainer], 35 setHostnameAsFQDN Bool, 36 os PodOS,
        37 hostUsers Bool, 38 schedulingGates [PodSchedulingGate],
        39 resourceClaims [PodResourceClaim], 40 resources ResourceRequirements,
        41 hostnameOverride String, 43 schedulingGroup PodSchedulingGroup,
    }
    PodStatus {
        1 phase string, 2 conditions [PodCondition], 3 message string, 4 reason string,
        5 hostIP string, 6 podIP string, 7 startTime Time, 8 containerStatuses [ContainerStatus],
        9 qosClass string, 10 initContainerStatuses [ContainerStatus], 11 nominatedNodeName string,
        12 podIPs [PodIP], 13 ephemeralContainerStatuses [ContainerStatus], 14 resize string,
        15 resourceClaimStatuses [PodResourceClaimStatus], 16 hostIPs [HostIP],
        17 observedGeneration int64, 18 extendedResourceClaimStatus PodExtendedResourceClaimStatus,
        19 allocatedResources {Quantity}, 20 resources ResourceRequirements,
        21 nodeAllocatableResourceClaimStatuses [NodeAllocatableResourceClaimStatus],
    }
    PodTemplateSpec { 1 metadata ObjectMeta, 2 spec PodSpec }
    PolicyRule {
        1 verbs [string], 2 apiGroups [string], 3 resources [string], 4 resourceNames [string],
        5 nonResourceURLs [string],
    }
    PortworxVolumeSource { 1 volumeID String, 2 fsType string, 3 readOnly bool }
    Preconditions { 1 uid String, 2 resourceVersion String }
    PreferredSchedulingTerm { 1 weight Int32, 2 preference NodeSelectorTerm }
    Probe {
        1 _ ProbeHandler, 2 initialDelaySeconds int32, 3 timeoutSeconds int32,
        4 periodSeconds int32, 5 successThreshold int32, 6 failureThreshold int32,
        7 terminationGracePeriodSeconds Int64,
    }
    ProbeHandler {
        1 exec ExecAction, 2 httpGet HTTPGetAction, 3 tcpSocket TCPSocketAction, 4 grpc GRPCAction,
    }
    ProjectedVolumeSource { 1 sources [VolumeProjection], 2 defaultMode Int32 }
    QuobyteVolumeSource {
        1 registry String, 2 volume String, 3 readOnly bool, 4 user string, 5 group string,
        6 tenant string,
    }
    RBDVolumeSource {
        1 monitors [string], 2 image String, 3 fsType string, 4 pool string, 5 user string,
        6 keyring string, 7 secretRef LocalObjectReference, 8 readOnly bool,
    }
    ResourceAttributes {
        1 namespace string, 2 verb string, 3 group string, 4 version string, 5 resource string,
        6 subresource string, 7 name string, 8 fieldSelector FieldSelectorAttributes,
        9 labelSelector LabelSelectorAttributes,
    }
    ResourceClaim { 1 name String, 2 request string }
    ResourceFieldSelector { 1 containerName string, 2 resource String, 3 divisor Quantity }
    ResourceHealth { 1 resourceID String, 2 health string, 6 message String }
    ResourceRequirements { 1 limits {Quantity}, 2 requests {Quantity}, 3 claims [ResourceClaim] }
    ResourceRule {
        1 verbs [string], 2 apiGroups [string], 3 resources [string], 4 resourceNames [string],
    }
    ResourceStatus { 1 name String, 2 resources [ResourceHealth] }
    RoleRef { 1 apiGroup String, 2 kind String, 3 name String }
    RollingUpdateDaemonSet { 1 maxUnavailable IntOrString, 2 maxSurge IntOrString }
    SELinuxOptions { 1 user string, 2 role string, 3 type string, 4 level string }
    ScaleIOVolumeSource {
        1 gateway String, 2 system String, 3 secretRef LocalObjectReference, 4 sslEnabled bool,
        5 protectionDomain string, 6 storagePool string, 7 storageMode string, 8 volumeName string,
        9 fsType string, 10 readOnly bool,
    }
    SeccompProfile { 1 type String, 2 localhostProfile String }
    SecretEnvSource { 1 _ LocalObjectReference, 2 optional Bool }
    SecretKeySelector { 1 _ LocalObjectReference, 2 key String, 3 optional Bool }
    SecretProjection { 1 _ LocalObjectReference, 2 items [KeyToPath], 4 optional Bool }
    SecretVolumeSource {
        1 secretName string, 2 items [KeyToPath], 3 defaultMode Int32, 4 optional Bool,
    }
    SecurityContext {
        1 capabilities Capabilities, 2 privileged Bool, 3 seLinuxOptions SELinuxOptions,
        4 runAsUser Int64, 5 runAsNonRoot Bool, 6 readOnlyRootFilesystem Bool,
        7 allowPrivilegeEscalation Bool, 8 runAsGroup Int64, 9 procMount String,
        10 windowsOptions WindowsSecurityContextOptions, 11 seccompProfile SeccompProfile,
        12 appArmorProfile AppArmorProfile,
    }
    SelfSubjectAccessReviewSpec {
        1 resourceAttributes ResourceAttributes, 2 nonResourceAttributes NonResourceAttributes,
    }
    SelfSubjectReviewStatus { 1 userInfo UserInfo }
    SelfSubjectRulesReviewSpec { 1 namespace string }
    ServiceAccountTokenProjection { 1 audience string, 2 expirationSeconds Int64, 3 path String }
    SleepAction { 1 seconds Int64 }
    StorageOSVolumeSource {
        1 volumeName string, 2 volumeNamespace string, 3 fsType string, 4 readOnly bool,
        5 secretRef LocalObjectReference,
    }
    Subject { 1 kind String, 2 apiGroup string, 3 name String, 4 namespace string }
    SubjectAccessReviewSpec {
        1 resourceAttributes ResourceAttributes, 2 nonResourceAttributes NonResourceAttributes,
        3 user string, 4 groups [string], 5 extra {Strings}, 6 uid string,
    }
    SubjectAccessReviewStatus {
        1 allowed Bool, 2 reason string, 3 evaluationError string, 4 denied bool,
    }
    SubjectRulesReviewStatus {
        1 resourceRules [ResourceRule], 2 nonResourceRules [NonResourceRule], 3 incomplete Bool,
        4 evaluationError string,
    }
    Sysctl { 1 name String, 2 value String }
    TCPSocketAction { 1 port IntOrString, 2 host string }
    Taint { 1 key String, 2 value string, 3 effect String, 4 timeAdded Time }
    Toleration {
        1 key string, 2 operator string, 3 value string, 4 effect string, 5 tolerationSeconds Int64,
    }
    TopologySpreadConstraint {
        1 maxSkew Int32, 2 topologyKey String, 3 whenUnsatisfiable String,
        4 labelSelector LabelSelector, 5 minDomains Int32, 6 nodeAffinityPolicy String,
        7 nodeTaintsPolicy String, 8 matchLabelKeys [string],
    }
    TypedLocalObjectReference { 1 apiGroup String, 2 kind String, 3 name String }
    TypedObjectReference { 1 apiGroup String, 2 kind String, 3 name String, 4 namespace String }
    UserInfo { 1 username string, 2 uid string, 3 groups [string], 4 extra {Strings} }
    Volume { 1 name String, 2 _ VolumeSource }
    VolumeDevice { 1 name String, 2 devicePath String }
    VolumeMount {
        1 name String, 2 readOnly bool, 3 mountPath String, 4 subPath string,
        5 mountPropagation String, 6 subPathExpr string, 7 recursiveReadOnly String,
    }
    VolumeMountStatus {
        1 name String, 2 mountPath String, 3 readOnly bool, 4 recursiveReadOnly String,
        5 volumeStatus VolumeStatus,
    }
    VolumeProjection {
        1 secret SecretProjection, 2 downwardAPI DownwardAPIProjection,
        3 configMap ConfigMapProjection, 4 serviceAccountToken ServiceAccountTokenProjection,
        5 clusterTrustBundle ClusterTrustBundleProjection,
        6 podCertificate PodCertificateProjection,
    }
    VolumeResourceRequirements { 1 limits {Quantity}, 2 requests {Quantity} }
    VolumeSource {
        1 hostPath HostPathVolumeSource, 2 emptyDir EmptyDirVolumeSource,
        3 gcePersistentDisk GCEPersistentDiskVolumeSource,
        4 awsElasticBlockStore AWSElasticBlockStoreVolumeSource, 5 gitRepo GitRepoVolumeSource,
        6 secret SecretVolumeSource, 7 nfs NFSVolumeSource, 8 iscsi ISCSIVolumeSource,
        9 glusterfs GlusterfsVolumeSource,
        10 persistentVolumeClaim PersistentVolumeClaimVolumeSource, 11 rbd RBDVolumeSource,
        12 flexVolume FlexVolumeSource, 13 cinder CinderVolumeSource, 14 cephfs CephFSVolumeSource,
        15 flocker FlockerVolumeSource, 16 downwardAPI DownwardAPIVolumeSource,
        17 fc FCVolumeSource, 18 azureFile AzureFileVolumeSource,
        19 configMap ConfigMapVolumeSource, 20 vsphereVolume VsphereVirtualDiskVolumeSource,
        21 quobyte QuobyteVolumeSource, 22 azureDisk AzureDiskVolumeSource,
        23 photonPersistentDisk PhotonPersistentDiskVolumeSource,
        24 portworxVolume PortworxVolumeSource, 25 scaleIO ScaleIOVolumeSource,
        26 projected ProjectedVolumeSource, 27 storageos StorageOSVolumeSource,
        28 csi CSIVolumeSource, 29 ephemeral EphemeralVolumeSource, 30 image ImageVolumeSource,
    }
    VolumeStatus { 1 image ImageVolumeStatus }
    VsphereVirtualDiskVolumeSource {
        1 volumePath String, 2 fsType string, 3 storagePolicyName string, 4 storagePolicyID string,
    }
    WeightedPodAffinityTerm { 1 weight Int32, 2 podAffinityTerm PodAffinityTerm }
    WindowsSecurityContextOptions {
        1 gmsaCredentialSpecName String, 2 gmsaCredentialSpec String, 3 runAsUserName String,
        4 hostProcess Bool,
    }
}
