{{- define "sluice.name" -}}
{{- if gt (len .Release.Name) 30 }}{{ fail "the name of the release has more than 30 characters" }}{{ end -}}
{{ .Release.Name }}
{{- end }}

{{- define "sluice.labels" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* Arguments: root, component. */}}
{{- define "sluice.selector" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* The domain of a headless Service. Arguments: root, component. */}}
{{- define "sluice.domain" -}}
{{ include "sluice.name" .root }}-{{ .component }}.{{ .root.Release.Namespace }}.svc.{{ .root.Values.clusterDomain }}
{{- end }}

{{/* The names of the pods of a StatefulSet, as TOML strings. Arguments: root, component, replicas. */}}
{{- define "sluice.pods" -}}
{{- $names := list }}
{{- range until (int .replicas) }}
{{- $names = append $names (printf "%q" (printf "%s-%s-%d" (include "sluice.name" $.root) $.component .)) }}
{{- end }}
{{- join ", " $names }}
{{- end }}

{{/* host:port of the pods of a StatefulSet. Arguments: root, component, replicas, port. */}}
{{- define "sluice.addresses" -}}
{{- $hosts := list }}
{{- range until (int .replicas) }}
{{- $hosts = append $hosts (printf "%s-%s-%d.%s:%d" (include "sluice.name" $.root) $.component . (include "sluice.domain" $) (int $.port)) }}
{{- end }}
{{- join "," $hosts }}
{{- end }}

{{- define "sluice.pdbVersion" -}}
{{- if .Capabilities.APIVersions.Has "policy/v1/PodDisruptionBudget" }}policy/v1{{ else if semverCompare ">=1.21.0-0" .Capabilities.KubeVersion.Version }}policy/v1{{ else }}policy/v1beta1{{ end }}
{{- end }}

{{- define "sluice.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* The file that says that a process takes work; the shell knows $POD_NAME. Arguments: test, path below the home, shell. */}}
{{- define "sluice.probes" -}}
{{- $command := printf "[test, %s, /var/lib/sluice/home/%s]" .test .path }}
{{- if contains "$POD_NAME" .path }}
{{- $command = printf "[sh, -c, 'exec test %s \"/var/lib/sluice/home/%s\"']" .test .path }}
{{- end -}}
startupProbe:
  exec: {command: {{ $command }}}
  periodSeconds: 5
  failureThreshold: 60
readinessProbe:
  exec: {command: {{ $command }}}
  periodSeconds: 10
{{- end }}

{{/* A killed process leaves its announcement on its volume: a later one must not be ready by it. See ADR 22. */}}
{{- define "sluice.command" -}}
command: [sh, -c, 'rm -rf "$SLUICE_HOME/run/endpoints" "$SLUICE_HOME/run/sock/sds.sock" && exec sluice "$@"', sluice]
{{- end }}

{{- define "sluice.environment" -}}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: SLUICE_HOME, value: /var/lib/sluice/home}
- {name: SLUICE_CONFIG, value: /etc/sluice/sluice.toml}
- {name: TMPDIR, value: /var/lib/sluice/tmp}
{{- end }}

{{- define "sluice.joining" -}}
- {name: SLUICE_CA_ADDRESS, value: "{{ include "sluice.name" . }}-ca.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}:8444,8445"}
- {name: SLUICE_POD_TOKEN_FILE, value: /run/sluice/token/token}
- {name: SLUICE_CA_ANCHORS, value: /run/sluice/trust/ca.pem}
{{- end }}

{{- define "sluice.mounts" -}}
- {name: data, mountPath: /var/lib/sluice}
- {name: tmp, mountPath: /tmp}
- {name: settings, mountPath: /etc/sluice, readOnly: true}
{{- end }}

{{- define "sluice.joiningMounts" -}}
- {name: keys, mountPath: /run/sluice/keys}
- {name: token, mountPath: /run/sluice/token, readOnly: true}
- {name: trust, mountPath: /run/sluice/trust, readOnly: true}
{{- end }}

{{- define "sluice.volumes" -}}
- {name: tmp, emptyDir: {sizeLimit: 256Mi}}
- {name: settings, configMap: {name: {{ include "sluice.name" . }}-settings}}
{{- end }}

{{/* The key of a process is in memory and in no object. */}}
{{- define "sluice.joiningVolumes" -}}
- {name: keys, emptyDir: {medium: Memory, sizeLimit: 16Mi}}
- name: token
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken: {path: token, audience: "spiffe://{{ .Values.trustDomain }}/ca", expirationSeconds: 3600}
- {name: trust, configMap: {name: {{ include "sluice.name" . }}-trust, optional: true}}
{{- end }}

{{/* Kubernetes makes volumes that belong to root; a home belongs to its process. */}}
{{- define "sluice.prepare" -}}
- name: prepare
  image: {{ .root.Values.image.name }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  command:
    - sh
    - -euc
    - |
      mkdir -p -m 0700 /var/lib/sluice/home /var/lib/sluice/home/run /var/lib/sluice/home/access /var/lib/sluice/tmp
      {{- if .joins }}
      mkdir -p -m 0700 /run/sluice/keys/pki
      ln -sfn /run/sluice/keys/pki /var/lib/sluice/home/pki
      {{- end }}
  securityContext: {{- include "sluice.containerSecurity" .root | nindent 4 }}
  resources: {requests: {cpu: 10m, memory: 32Mi}, limits: {memory: 64Mi}}
  volumeMounts:
    - {name: data, mountPath: /var/lib/sluice}
    {{- if .joins }}
    - {name: keys, mountPath: /run/sluice/keys}
    {{- end }}
{{- end }}

{{/* What each pod has. Arguments: root, component, account token (calls the API). */}}
{{- define "sluice.pod" -}}
serviceAccountName: {{ include "sluice.name" .root }}-{{ .component }}
automountServiceAccountToken: {{ .api | default false }}
enableServiceLinks: false
terminationGracePeriodSeconds: 40
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - {name: {{ . }}}
  {{- end }}
{{- end }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- include "sluice.selector" . | nindent 14 }}
{{- end }}

{{/* Arguments: storage (size, className). */}}
{{- define "sluice.claim" -}}
- metadata: {name: data}
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .className }}
    storageClassName: {{ . }}
    {{- end }}
    resources: {requests: {storage: {{ .size }}}}
{{- end }}

{{/* A TaskManager, as a member of the release. */}}
{{- define "sluice.taskmanager" -}}
component: taskmanager
process: taskmanager
path: run/endpoints/taskmanager-$POD_NAME.json
ports: []
{{- end }}

{{/* The pod of a process that joins. Arguments: root, component, values, process, name, path, ports, api, storage, alone (in no StatefulSet). */}}
{{- define "sluice.podTemplate" -}}
{{- $name := include "sluice.name" .root }}
{{- $domain := include "sluice.domain" (dict "root" .root "component" .component) }}
{{- $boxes := and (eq .component "taskmanager") (eq .root.Values.isolation.level "sandbox") }}
{{- $shares := and (eq .component "auth") .root.Values.auth.sharedStore.hosts }}
{{- $onDemand := and (eq .component "jobmanager") (eq .root.Values.taskmanager.provider "kubernetes") -}}
metadata:
  labels: {{- include "sluice.selector" (dict "root" $.root "component" .component) | nindent 4 }}
  annotations:
    sluice/settings: {{ include (print $.root.Template.BasePath "/settings.yaml") $.root | sha256sum }}
    {{- if $onDemand }}
    sluice/taskmanager-pods: {{ include (print $.root.Template.BasePath "/taskmanager-pods.yaml") $.root | sha256sum }}
    {{- end }}
    {{- if $boxes }}
    container.apparmor.security.beta.kubernetes.io/taskmanager: unconfined
    {{- end }}
spec:
  {{- include "sluice.pod" (dict "root" $.root "component" .component "api" .api) | nindent 2 }}
  {{- if and $boxes (semverCompare ">=1.30.0-0" $.root.Capabilities.KubeVersion.Version) }}
  hostUsers: false
  {{- end }}
  {{- if eq .component "taskmanager" }}
  # The first process is the pause container's, which reaps what killed executors leave (compose: init, ADR 22).
  shareProcessNamespace: true
  {{- end }}
  {{- with .subdomain }}
  subdomain: {{ . }}
  {{- end }}
  {{- with .values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  initContainers: {{- include "sluice.prepare" (dict "root" $.root "joins" true) | nindent 4 }}
  containers:
    - name: {{ .component }}
      image: {{ $.root.Values.image.name }}
      imagePullPolicy: {{ $.root.Values.image.pullPolicy }}
      {{- include "sluice.command" $.root | nindent 6 }}
      args:
        - run
        - {{ .process }}
        - --name={{ .name | default "$(POD_NAME)" }}
        - --dns=$(POD_NAME).{{ $domain }}
        {{- if eq .component "jobmanager" }}
        - --dns={{ $name }}-rest.{{ $.root.Release.Namespace }}.svc.{{ $.root.Values.clusterDomain }}
        {{- end }}
      env:
        {{- include "sluice.environment" $.root | nindent 8 }}
        {{- include "sluice.joining" $.root | nindent 8 }}
        {{- if eq .component "jobmanager" }}
        - {name: SLUICE__JOBMANAGER__HOST, value: "$(POD_NAME).{{ $domain }}"}
        - {name: SLUICE__JOBMANAGER__REST_HOST, value: "$(POD_NAME).{{ $domain }}"}
        {{- if $onDemand }}
        - {name: SLUICE__PODS__OWN_POD, value: $(POD_NAME)}
        {{- end }}
        {{- else if eq .component "taskmanager" }}
        - {name: SLUICE__TASKMANAGER__HOST, value: "$(POD_NAME).{{ $domain }}"}
        - {name: SLUICE_JOBMANAGER, value: {{ include "sluice.addresses" (dict "root" $.root "component" "jobmanager" "replicas" $.root.Values.jobmanager.replicas "port" 6123) | quote }}}
        {{- else if eq .component "auth" }}
        - {name: SLUICE__GATEWAY__AUTH_HOST, value: "$(POD_NAME).{{ $domain }}"}
        {{- else if hasPrefix "shuffle" .component }}
        - {name: SLUICE__SHUFFLE__HOST, value: "$(POD_NAME).{{ $domain }}"}
        {{- end }}
      {{- with .ports }}
      ports:
        {{- range . }}
        - {containerPort: {{ . }}}
        {{- end }}
      {{- end }}
      {{- include "sluice.probes" (dict "test" "-f" "path" .path) | nindent 6 }}
      securityContext:
        {{- if $boxes }}
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        runAsNonRoot: true
        capabilities: {drop: [ALL]}
        procMount: Unmasked
        seccompProfile: {type: Localhost, localhostProfile: {{ $.root.Values.isolation.seccompProfile }}}
        {{- else }}
        {{- include "sluice.containerSecurity" $.root | nindent 8 }}
        {{- end }}
      resources: {{- toYaml .values.resources | nindent 8 }}
      volumeMounts:
        {{- include "sluice.mounts" $.root | nindent 8 }}
        {{- include "sluice.joiningMounts" $.root | nindent 8 }}
        {{- if $shares }}
        - {name: store, mountPath: /run/sluice/store, readOnly: true}
        {{- end }}
        {{- if $onDemand }}
        - {name: pods, mountPath: /etc/sluice-pods, readOnly: true}
        {{- end }}
        {{- if and (eq .component "jobmanager") (not $.root.Values.ha.url) }}
        - {name: ha, mountPath: /var/lib/sluice-ha}
        {{- end }}
  volumes:
    {{- include "sluice.volumes" $.root | nindent 4 }}
    {{- include "sluice.joiningVolumes" $.root | nindent 4 }}
    {{- if not .storage }}
    - {name: data, emptyDir: {{ with .sizeLimit }}{sizeLimit: {{ . }}}{{ else }}{}{{ end }}}
    {{- end }}
    {{- if $shares }}
    # fsGroup adds that the group may read it.
    - {name: store, secret: {secretName: {{ $.root.Values.auth.sharedStore.secret }}, defaultMode: 0400}}
    {{- end }}
    {{- if $onDemand }}
    - {name: pods, configMap: {name: {{ $name }}-taskmanager-pods}}
    {{- end }}
    {{- if and (eq .component "jobmanager") (not $.root.Values.ha.url) }}
    - {name: ha, persistentVolumeClaim: {claimName: {{ $.root.Values.ha.existingClaim | default (printf "%s-ha" $name) }}}}
    {{- end }}
{{- end }}
